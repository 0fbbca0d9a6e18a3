-- close.lua: refuse everybody who is here or comes, until the last holder has left.
-- KEYS  1-7 the semaphore (common.lua)
-- ARGV  1 now (s; empty: the server's clock)   2 the caller's seat   3 for how long it is remembered (s)
-- Returns what it has to tell the caller's seat.  Mirrors Ledger.close.
--
-- Semaphore objects made before this stay closed for as long as it is
-- remembered; new ones may use the name again once nobody holds it.
-- include common.lua
open(1, ARGV[1])
caller = ARGV[2]
end_ttls()
bury_silent()
redis.call('HSET', state, '.closed', whole(now_us), '.closing', '1')
for _, id in ipairs(redis.call('ZRANGE', waiting, 0, -1)) do
  tell(id, who_of(id), 'closed')
  redis.call('HDEL', state, id)
end
redis.call('DEL', waiting, waiting_heartbeat)
outlive(state, tonumber(ARGV[3]))
return told
