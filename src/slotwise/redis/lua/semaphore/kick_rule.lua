-- semaphore/kick_rule.lua: end somebody's acquisition, now or after its grace; grants nothing. Not a script.
-- include semaphore/rules.lua

-- For how long (s) a claim keeps its slots after a kick, or nil.
local function grace_of(owner) return tonumber(string.match(owner or '', '^!%S* %S+ %d+/([%d.]+)')) end

-- How many slots it had, or has until it releases them.
local function kick(id, interval)
  local owner = owner_of(id)
  local grace = grace_of(owner)
  if not grace then
    local released = drop(id)
    notify(id, owner, 'kicked')
    return released
  end
  -- It is told, and has that long to release it.
  local ends = tonumber(redis.call('ZSCORE', ttls, id) or nil)
  if not ends or ends > now + grace then
    redis.call('ZADD', ttls, seconds(now + grace), id)
    outlive(ttls, grace + interval)
  end
  notify(id, owner, 'kicked', 'later')
  return slots_of(id)
end
