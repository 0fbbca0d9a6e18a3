-- semaphore/inspect.lua: how full a semaphore is, and, if asked, who is there.
-- KEYS  1-7 the semaphore (semaphore/rules.lua)
-- ARGV  1 now (s; empty: the server's clock)   2 "counts", "holders" or "waiters"
--       3 pattern of foreign notification lists   4 heartbeat_max_interval (s)
-- Returns {value or 0, held, waiting, 1 if closed and 2 if for a reason, the reason or ""}, and
-- behind it, in order, for each one
-- the id, since when (s) and its claim, "" for a foreign one.
-- Mirrors Ledger.expire, then reads.
-- include semaphore/rules.lua
open(1, ARGV[1])
pattern = ARGV[3]
end_ttls()
drop_silent()
local text = redis.call('HGET', state, '.value') or redis.call('GET', max)
local value = tonumber(text or nil)
if text and not (value and value >= 1 and value <= 2^53 and value == math.floor(value)) then
  return redis.error_reply('ERR its value is no number of slots: ' .. string.sub(text, 1, 40))
end
settle(value, tonumber(ARGV[4]))
local facts = redis.call('HMGET', state, '.closed', '.reason')
if facts[1] then keep_closed() end
local closed = facts[1] and (facts[2] and 2 or 1) or 0
local reply = {
  value or 0, redis.call('ZCARD', main), redis.call('ZCARD', waiting), closed, facts[2] or '',
}

local function append(id, since)
  local claim = redis.call('HGET', state, id) or ''
  reply[#reply + 1] = id
  reply[#reply + 1] = since
  reply[#reply + 1] = claim
end
if ARGV[2] == 'holders' then
  for _, member in ipairs(redis.call('ZRANGE', main, 0, -1)) do
    if id_of(member) == member then append(member, '') end
  end
elseif ARGV[2] == 'waiters' then
  local queue = redis.call('ZRANGE', waiting, 0, -1, 'WITHSCORES')
  for i = 1, #queue, 2 do append(queue[i], queue[i + 1]) end
end
return reply
