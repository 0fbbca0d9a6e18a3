-- semaphore/reopen.lua: undo close.lua and pause.lua; a semaphore that is open is left alone.
-- KEYS  1-7 the semaphore (semaphore/rules.lua)
-- ARGV  1 now (s; empty: the server's clock)   2 the loop client that calls
--       3 heartbeat_max_interval (s), for foreign waiters   4 pattern of foreign notification lists
-- Returns messages for the caller.  Mirrors Ledger.reopen.
-- include semaphore/rules.lua
open(1, ARGV[1])
caller, pattern = ARGV[2], ARGV[4]
end_ttls()
drop_silent()
local facts = redis.call('HMGET', state, '.until', '.life')
local was_paused = redis.call('HDEL', state, '.paused') == 1
if redis.call('HDEL', state, '.closed', '.reason', '.until') > 0 then
  -- From now on it is kept for as long as if it had not been closed.
  local until_us = math.max(tonumber(facts[1]) or 0, tonumber(facts[2]) or 0)
  local left = math.max((until_us - now_us) / 1000, 4000 * tonumber(ARGV[3]))
  for _, key in ipairs({state, max}) do redis.call('PEXPIRE', key, math.ceil(left)) end
  serve(current_value(), tonumber(ARGV[3]))
elseif was_paused then
  -- It is kept for as long as without the pause; one that has had another value for a day.
  local values = redis.call('HGET', state, '.values')
  local left = math.max(((tonumber(facts[2]) or 0) - now_us) / 1000, 4000 * tonumber(ARGV[3]),
                        has_moved(values) and 86400000 or 0)
  for _, key in ipairs({state, max}) do
    if redis.call('PTTL', key) > left then redis.call('PEXPIRE', key, math.ceil(left)) end
  end
  serve(current_value(), tonumber(ARGV[3]))
end
return messages
