-- semaphore/pause.lua: grant nothing for a while; if there are several pauses, the one that ends
-- last counts.
-- KEYS  1-7 the semaphore (semaphore/rules.lua)
-- ARGV  1 now (s; empty: the server's clock)   2 the loop client that calls   3 heartbeat_max_interval (s)
--       4 pattern of foreign notification lists   5 the value the caller was made with   6 for how long (s)
-- Returns {"paused"} or {"closed", the reason if there is one}, followed by messages for the caller.
-- Waiters are told to check, and learn when to come back: nobody else wakes them then.
-- Mirrors Ledger.pause.
-- include semaphore/rules.lua
open(1, ARGV[1])
caller, pattern = ARGV[2], ARGV[4]
local interval, length = tonumber(ARGV[3]), tonumber(ARGV[6])
end_ttls()
drop_silent()
local facts = redis.call('HMGET', state, '.closed', '.reason')
if facts[1] then return closed_reply(facts[2]) end
if not current_value() then agree_on_value(ARGV[5], 0, 0, interval) end
if length > 0 then
  begin_pause(math.ceil(length * 1000000), interval)
end
keep(interval)
local reply = {'paused'}
for _, message in ipairs(messages) do reply[#reply + 1] = message end
return reply
