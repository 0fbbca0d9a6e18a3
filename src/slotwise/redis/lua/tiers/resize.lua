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
if open(1, ARGV[1]) then return redis.error_reply(repairs.REPLY) end
caller = ARGV[2]
local tier, name, value, after = tonumber(ARGV[6]) + 1, ARGV[7], tonumber(ARGV[8]), ARGV[10]
local rate = buckets.read(ARGV[8])
if known['.closed'] then return closed_reply() end
local clash = agreement.declare(ARGV[4], ARGV[5])
if clash then return {'conflict', clash - 1, agreement.conflicting(clash)} end
outlive(math.max(longest, tonumber(ARGV[3])))
expire()

local changed_node = name ~= '' and read_node(name)
if changed_node and after == '' then
  if rate then
    changed_node.own_rate = rate
    buckets.change_rate(changed_node, rate)
  else
    changed_node.value = value
  end
  change(changed_node)
elseif after == '' and not rate then
  values[tier] = value
  agreement.accept(tier, ARGV[8])
elseif after == '' and buckets.change_rates(tier, rate, '0') then  -- all its buckets
  return redis.error_reply(repairs.REPLY)
end

-- Refuse those of some waiters that need more than there is now; false if they are too many for one call.
local function refuse(ids)
  local unfits, large, unread, paths = {}, {}, {}, {}
  for _, id in ipairs(ids) do
    if string.find(id, '*', 1, true) then
      large[#large + 1] = id
      note_unread(id, unread)
    end
  end
  fetch(unread)
  for i, id in ipairs(large) do
    large[i] = {id, read_claim(id)}
    if large[i][2] then paths[#paths + 1] = large[i][2].path end
  end
  fetch_paths(paths)
  for _, each in ipairs(large) do
    local id, claim = each[1], each[2]
    local unfit_tier, its_value
    if claim then unfit_tier, its_value = unfit(nodes_of(claim.path), needs_of(id)) end
    if unfit_tier then unfits[#unfits + 1] = {claim.ticket, id, claim.owner, its_value, unfit_tier} end
  end
  table.sort(unfits, function(one, other) return one[1] < other[1] end)
  for i = 1, math.min(#unfits, AT_ONCE) do
    local each = unfits[i]
    leave(each[2])
    notify(each[2], each[3], 'refused ' .. each[2] .. ' ' .. whole(each[4]) .. ' ' .. whole(each[5]))
  end
  return #unfits <= AT_ONCE
end
if known['.large'] and (after == '' or string.sub(after, 1, 1) == '*') then
  if after == '' and redis.call('ZCARD', keys.waiters) <= PAGE / 2 then
    after = refuse(redis.call('ZRANGE', keys.waiters, 0, -1)) and '' or '*0'
  else
    local from = after == '' and '0' or string.sub(after, 2)
    local found, ids = redis.call('ZSCAN', keys.waiters, from, 'COUNT', PAGE / 2), {}
    for i = 1, #found[2], 2 do ids[#ids + 1] = found[2][i] end
    if not refuse(ids) then
      after = '*' .. from
    else
      after = found[1] ~= '0' and '*' .. found[1] or ''
    end
  end
end

if string.sub(after, 1, 1) == '*' then
  -- There is more to refuse first.
elseif changed_node then
  after = ''
  look_at(changed_node)
else
  -- From node to node, whatever is parked at each: this many of them in one call.
  after = pauses.look_at_some(whole(tier - 1), after, pauses.room_for_work()) or ''
end
serve()
outlive(tonumber(ARGV[9]))
return answer({'resized', after})
