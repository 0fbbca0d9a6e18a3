-- semaphore/reopen.lua: undo close.lua; a semaphore that is open is left alone.
-- KEYS  1-7 the semaphore (semaphore/rules.lua)
-- ARGV  1 now (s; empty: the server's clock)   2 the loop client that calls
--       3 heartbeat_max_interval (s), for foreign waiters   4 pattern of foreign notification lists
-- Returns messages for the caller.  Mirrors Ledger.reopen.
-- include semaphore/rules.lua
open(1, ARGV[1])
caller, pattern = ARGV[2], ARGV[4]
end_ttls()
drop_silent()
if redis.call('HDEL', state, '.closed', '.reason') > 0 then
  settle(current_value(), tonumber(ARGV[3]))
end
return messages
