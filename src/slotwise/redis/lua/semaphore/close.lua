-- semaphore/close.lua: refuse everybody who is here or comes, until reopen.lua.
-- KEYS  1-7 the semaphore (semaphore/rules.lua)
-- ARGV  1 now (s; empty: the server's clock)   2 the loop client that calls
--       3 the value the caller was made with   4 the reason (only if there is one)
-- Returns messages for the caller.  Mirrors Ledger.close.
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
  redis.call('HSET', state, '.value', ARGV[3], '.values', ',' .. ARGV[3] .. ',')
  redis.call('SET', max, ARGV[3])
end
for _, id in ipairs(redis.call('ZRANGE', waiting, 0, -1)) do
  notify(id, owner_of(id), 'closed', ARGV[4])
  redis.call('HDEL', state, id)
end
redis.call('DEL', waiting, waiting_heartbeat)
keep_closed()
return messages
