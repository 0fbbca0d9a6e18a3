-- documented/card.lua: end what has expired, and count the slots that are held.
-- KEYS  1 main (zset member -> deadline)   2 ttl (zset id -> deadline)
-- ARGV  1 now (s; empty: the server's clock)
-- Returns the count.  Mirrors Ledger.expire and Ledger.in_use, granting nothing.
local main, ttls = KEYS[1], KEYS[2]
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] + time[2] / 1000000
end
local now_text = string.format('%.6f', now)

for _, id in ipairs(redis.call('ZRANGEBYSCORE', ttls, '-inf', now_text)) do
  redis.call('ZREM', main, id)
  for i = 2, tonumber(string.match(id, '^sw%-.*%*(%d+)$') or 1) do
    if redis.call('ZREM', main, id .. '#' .. i) == 0 then break end
  end
end
redis.call('ZREMRANGEBYSCORE', ttls, '-inf', now_text)
redis.call('ZREMRANGEBYSCORE', main, '-inf', now_text)
return redis.call('ZCARD', main)
