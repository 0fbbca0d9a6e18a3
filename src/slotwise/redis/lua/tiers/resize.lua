-- tiers/resize.lua: change the value of a tier, or of one key of it, in use.
-- KEYS  1-12 the Tiers object (tiers/state.lua)
-- ARGV  1 now (s; empty: the server's clock)   2 the loop client that calls   3 heartbeat_max_interval (s)
--       4 the tiers' names, as the caller was made   5 and their values
--       6 the tier's number   7 its node, or empty for the tier itself   8 the new value; 0: no limit; or a rate
--       9 for how long it is remembered when nobody is there (s)
--       10 empty to change it, or where to continue: "*" and a cursor with waiters that can never fit now,
--          or the node after which to continue looking for waiters that fit now
-- Returns {"resized", where to continue, or "" at the end}, {"conflict", tier or -1, its value} or
-- {"closed", the reason if there is one}, followed by messages for the caller.
-- Mirrors PathLedger.expire, then PathLedger.resize.
-- include tiers/rules.lua
open(1, ARGV[1])
caller = ARGV[2]
local tier, name, value, after = tonumber(ARGV[6]) + 1, ARGV[7], tonumber(ARGV[8]), ARGV[10]
local rate = read_rate(ARGV[8])
if known['.closed'] then return closed_reply() end
local clash = declare(ARGV[4], ARGV[5])
if clash then return {'conflict', clash - 1, conflicting(clash)} end
outlive(math.max(longest, tonumber(ARGV[3])))
expire()

-- Continue with another rate: the level stays, to the nearest part, cut to the new burst.
local function change_rate(node)
  local old = node.rate
  refill(node)
  local is_full = node.level == old.full
  local units = math.floor(node.level / old.unit)
  local parts = units * rate.unit + math.floor((node.level - units * old.unit) / old.unit * rate.unit + 0.5)
  node.rate = rate
  node.level = is_full and rate.full or math.min(parts, rate.full)
  charge(node, 0)
  touched[node.name] = node
end

local changed_node = name ~= '' and read_node(name)
if changed_node and after == '' then
  if rate then
    changed_node.own_rate = rate
    change_rate(changed_node)
  else
    changed_node.value = value
  end
  change(changed_node)
elseif after == '' then
  if rate then  -- all its buckets
    local from = '0'
    repeat
      local found = redis.call('HSCAN', state, from, 'MATCH', whole(tier - 1) .. ':*', 'COUNT', 1000)
      from = found[1]
      for i = 1, #found[2], 2 do
        local node = read_node(found[2][i])
        if not node.own_rate then change_rate(node) end
      end
    until from == '0'
  end
  values[tier], value_texts[tier] = rate and rate.burst or value, ARGV[8]
  rates[tier] = rate or nil
  -- Objects may be made with the old value and with the new one.
  local texts, parts = {}, {}
  for i in ipairs(values) do
    texts[i], parts[i] = value_texts[i], part(get('.accepted'), i)
    if i == tier and not string.find(parts[i], ',' .. texts[i] .. ',', 1, true) then
      parts[i] = parts[i] .. texts[i] .. ','
    end
  end
  put('.values', table.concat(texts, ','))
  put('.accepted', table.concat(parts, '|'))
end

-- The waiters that need more than there is now.
local function refuse(ids)
  local unfits = {}
  for _, id in ipairs(ids) do
    local claim = string.find(id, '*', 1, true) and read_claim(id)
    local unfit_tier, its_value
    if claim then unfit_tier, its_value = unfit(nodes_of(claim.path), needs_of(id)) end
    if unfit_tier then unfits[#unfits + 1] = {claim.ticket, id, claim.owner, its_value, unfit_tier} end
  end
  table.sort(unfits, function(one, other) return one[1] < other[1] end)
  for _, each in ipairs(unfits) do
    leave(each[2])
    notify(each[2], each[3], 'refused', each[2], whole(each[4]), whole(each[5]))
  end
end
if known['.large'] and (after == '' or string.sub(after, 1, 1) == '*') then
  if after == '' and redis.call('ZCARD', waiters) <= PAGE then
    refuse(redis.call('ZRANGE', waiters, 0, -1))
  else
    local found, ids = redis.call('ZSCAN', waiters, after == '' and '0' or string.sub(after, 2), 'COUNT', PAGE), {}
    for i = 1, #found[2], 2 do ids[#ids + 1] = found[2][i] end
    refuse(ids)
    after = found[1] ~= '0' and '*' .. found[1] or ''
  end
end

if string.sub(after, 1, 1) == '*' then
  -- There is more to refuse first.
elseif changed_node then
  after = ''
  look_at(changed_node)
else
  -- From node to node, whatever is parked at each: this many of them in one call.
  local from, left = '[' .. (after == '' and whole(tier - 1) .. ':' or after .. '"'), AT_ONCE
  after = ''
  while true do
    local record = redis.call('ZRANGEBYLEX', parked, from, '(' .. whole(tier - 1) .. ';', 'LIMIT', 0, 1)[1]
    if not record then
      after = ''
      break
    elseif left == 0 then
      break
    end
    after, left = string.match(record, '^[^%s!]+'), left - 1
    look_at(read_node(after))
    from = '[' .. after .. '"'
  end
end
settle()
outlive(tonumber(ARGV[9]))
return answer({'resized', after})
