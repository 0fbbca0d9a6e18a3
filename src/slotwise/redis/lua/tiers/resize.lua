-- tiers/resize.lua: change the value of a tier, or of one key of it, in use.
-- KEYS  1-8 the Tiers object (tiers/state.lua)
-- ARGV  1 now (s; empty: the server's clock)   2 the loop client that calls   3 heartbeat_max_interval (s)
--       4 the tiers' names, as the caller was made   5 and their values
--       6 the tier's number   7 its node, or empty for the tier itself   8 the new value; 0: no limit
--       9 for how long it is remembered when nobody is there (s)
--       10 empty to change it, or the node behind which to look on for waiters that fit now
-- Returns {"resized", the node behind which to look on, or "" at the end}, {"conflict", tier or -1, its value} or
-- {"closed", the reason if there is one}, and behind it messages for the caller.
-- Mirrors PathLedger.expire, then PathLedger.resize.
-- include tiers/rules.lua
open(1, ARGV[1])
caller = ARGV[2]
local tier, name, value, after = tonumber(ARGV[6]) + 1, ARGV[7], tonumber(ARGV[8]), ARGV[10]
if known['.closed'] then return closed_reply() end
local clash = declare(ARGV[4], ARGV[5])
if clash then return {'conflict', clash - 1, values[clash] or 0} end
outlive(math.max(longest, tonumber(ARGV[3])))
expire()

if name ~= '' then
  local node = read_node(name)
  node.value = value
  change(node)
  look_at(node)
elseif after == '' then
  values[tier] = value
  -- Objects may be made with the old value and with the new one.
  local texts, parts = {}, {}
  for i, each in ipairs(values) do
    texts[i], parts[i] = whole(each), part(get('.accepted'), i)
    if i == tier and not string.find(parts[i], ',' .. texts[i] .. ',', 1, true) then
      parts[i] = parts[i] .. texts[i] .. ','
    end
  end
  put('.values', table.concat(texts, ','))
  put('.accepted', table.concat(parts, '|'))
end
if name == '' then
  -- From node to node, whatever is parked at each: so many of them in one call.
  local from, left = '[' .. (after == '' and whole(tier - 1) .. ':' or after .. '!'), AT_ONCE
  after = ''
  while true do
    local record = redis.call('ZRANGEBYLEX', parked, from, '(' .. whole(tier - 1) .. ';', 'LIMIT', 0, 1)[1]
    if not record then
      after = ''
      break
    elseif left == 0 then
      break
    end
    after, left = string.match(record, '^%S+'), left - 1
    look_at(read_node(after))
    from = '[' .. after .. '!'
  end
end
settle()
outlive(tonumber(ARGV[9]))
return answer({'resized', after})
