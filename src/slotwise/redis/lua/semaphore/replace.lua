-- semaphore/replace.lua: whose slots a request takes over. Not a script.
-- include semaphore/kick_rule.lua
local HEAD_START = 1000000000  -- s; puts a request that replaces before all others

-- The longest holders, as many as are needed for `slots` more, and whether all of them leave at
-- once; {} if they are too few, or while nothing is granted. Those that are already leaving are
-- left out, and so are clients that know no claims: they could not be told.
-- Mirrors Ledger.to_replace.
local function to_replace(slots, value, held, queued)
  if paused_until(redis.call('HGET', state, '.paused')) then return {}, false end
  local missing, found, chosen, at_once = slots + held - value, {}, {}, true
  if queued > 0 then missing = math.max(missing, slots) end
  local members = redis.call('ZRANGE', main, 0, LOOKED_AT - 1)
  local texts = #members > 0 and redis.call('HMGET', state, unpack(members)) or {}
  local all_ends = #members > 0 and redis.call('ZMSCORE', ttls, unpack(members)) or {}
  for i, member in ipairs(members) do
    local claim = id_of(member) == member and parse_claim(texts[i])
    local ends = claim and tonumber(all_ends[i] or nil)
    local grace = claim and grace_of(claim.owner)
    if claim and claim.granted ~= '0' and not (grace and ends and ends <= now + grace) then
      found[#found + 1] = {claim.token, member, grace}
    end
  end
  table.sort(found, function(one, other) return one[1] < other[1] end)
  for _, each in ipairs(found) do
    if missing <= 0 then break end
    chosen[#chosen + 1] = each[2]
    missing = missing - slots_of(each[2])
    if each[3] then at_once = false end
  end
  if missing > 0 then return {}, false end
  return chosen, at_once
end
