-- semaphore/close.lua: refuse all waiters and newcomers, until reopen.lua.
-- KEYS  1-7 the semaphore (semaphore/rules.lua)
-- ARGV  1 now (s; empty: the server's clock)   2 the loop client that calls
--       3 the value the caller was made with, or its rules   4 the reason (only if there is one)
-- Returns messages for the caller, followed by "unfinished" if it has to be called again: one call
-- refuses a bounded number of waiters. If nobody calls again, their heartbeats have them refused.
-- Mirrors Ledger.close.
-- include semaphore/rules.lua
open(1, ARGV[1])
caller = ARGV[2]
end_ttls()
drop_silent()
if redis.call('HEXISTS', state, '.closed') == 0 then
  local left = math.max(redis.call('PTTL', state), 0)
  redis.call('HSET', state, '.closed', '1', '.until', whole(now_us + left * 1000))
end
if ARGV[4] then
  redis.call('HSET', state, '.reason', ARGV[4])
else
  redis.call('HDEL', state, '.reason')
end
if not current_value() then
  agree_on_value(ARGV[3], 0, 0, 60)
end
refuse_waiters(ARGV[4])
keep_closed()
if unfinished then messages[#messages + 1] = 'unfinished' end
return messages
