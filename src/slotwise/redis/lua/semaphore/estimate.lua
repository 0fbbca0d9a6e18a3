-- semaphore/estimate.lua: when a newcomer would get its slots (s), or nil: base/estimate.lua says how.
-- Not a script.
-- include base/estimate.lua
local function estimate(slots, value, held, queued)
  local until_us = paused_until(redis.call('HGET', state, '.paused'))
  local paused_for = until_us and (until_us - now_us) / 1000000
  if queued == 0 and held + slots <= value then return paused_for or 0 end
  local first = redis.call('ZRANGE', waiting, 0, SAMPLE - 1)
  for i, id in ipairs(first) do first[i] = slots_of(id) end
  local missing = held + estimates.total(first, queued) + slots - value
  local wait = estimates.slots_in(missing, value, estimates.mean_hold(redis.call('HGET', state, '.hold')))
  return paused_for and math.max(wait or 0, paused_for) or wait
end
