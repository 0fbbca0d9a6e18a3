-- semaphore/resize.lua: change the value of a semaphore in use.
-- KEYS  1-7 the semaphore (semaphore/rules.lua)
-- ARGV  1 now (s; empty: the server's clock)   2 the loop client that calls   3 heartbeat_max_interval (s)
--       4 pattern of foreign notification lists   5 the value the caller was made with
--       6 the new value   7 for how long it is remembered when nobody is there (s)
-- Returns {"resized", value} or {"closed", the reason if there is one}, and
-- behind it messages for the caller.
-- Mirrors Ledger.resize.
-- include semaphore/rules.lua
open(1, ARGV[1])
caller, pattern = ARGV[2], ARGV[4]
local interval, declared, value, remembered = tonumber(ARGV[3]), ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
end_ttls()
drop_silent()
local facts = redis.call('HMGET', state, '.closed', '.reason')
if facts[1] then return closed_reply(facts[2]) end
local held = redis.call('ZCARD', main)

if redis.call('HEXISTS', state, '.value') == 0 then note_orphans() end
local values = redis.call('HGET', state, '.values')
if not values then
  local before = held > 0 and tonumber(redis.call('GET', max))
  values = ',' .. (before and whole(before) .. ',' or '')
end
for _, known in ipairs({declared, whole(value)}) do
  if not string.find(values, ',' .. known .. ',', 1, true) then values = values .. known .. ',' end
end
local shrinks = value < (current_value() or math.huge)  -- nobody has to go for a value that grows
redis.call('HSET', state, '.value', value, '.values', values)
redis.call('SET', max, value, 'KEEPTTL')
for _, id in ipairs(shrinks and redis.call('ZRANGE', waiting, 0, -1) or {}) do
  if slots_of(id) > value then
    leave_queue(id)
    notify(id, owner_of(id), 'refused', whole(value))
    redis.call('HDEL', state, id)
  end
end
settle(value, interval)
keep(interval)
outlive(state, remembered)
outlive(max, remembered)
table.insert(messages, 1, value)
table.insert(messages, 1, 'resized')
return messages
