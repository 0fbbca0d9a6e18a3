"""The six scripts as the document has them, and as another client would write them.

They know nothing of ours: they wake by lists alone, and every key they touch expires by the
last writer, its ttl and 10 s later.
"""

QUEUE = """
redis.call('ZADD', KEYS[1], ARGV[4], ARGV[1])
redis.call('ZADD', KEYS[2], ARGV[4] + ARGV[2], ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[3] + 10)
redis.call('EXPIRE', KEYS[2], ARGV[3] + 10)
"""

WAKE_UP_NEXTS = """
local now = ARGV[4]
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now)) do
  redis.call('ZREM', KEYS[1], id)
  redis.call('ZREM', KEYS[2], id)
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', now)) do
  redis.call('ZREM', KEYS[3], id)
  redis.call('ZREM', KEYS[4], id)
end
local free, notified = ARGV[1] - redis.call('ZCARD', KEYS[1]), 0
while free > notified do
  local id = redis.call('ZPOPMIN', KEYS[3])[1]
  if not id then break end
  redis.call('ZREM', KEYS[4], id)
  redis.call('ZADD', KEYS[1], now + ARGV[2], id)
  redis.call('EXPIRE', KEYS[1], ARGV[3] + 10)
  local list = string.gsub(ARGV[5], '@@@ACQUISITION_ID@@@', (string.gsub(id, '%%', '%%%%')))
  redis.call('RPUSH', list, '1')
  redis.call('EXPIRE', list, ARGV[3] + 10)
  notified = notified + 1
end
return notified
"""

ACQUIRE = """
local changed = redis.call('ZADD', KEYS[1], 'XX', 'CH', ARGV[5] + ARGV[3], ARGV[1])
if changed > 0 then
  redis.call('ZADD', KEYS[2], ARGV[5] + ARGV[4], ARGV[1])
  redis.call('EXPIRE', KEYS[1], ARGV[4] + 10)
  redis.call('EXPIRE', KEYS[2], ARGV[4] + 10)
  redis.call('SET', KEYS[3], ARGV[2], 'EX', ARGV[4] + 10)
end
return {changed, redis.call('ZCARD', KEYS[1])}
"""

RELEASE = """
local removed = redis.call('ZREM', KEYS[1], ARGV[1])
for i = 2, 4 do redis.call('ZREM', KEYS[i], ARGV[1]) end
return removed
"""

PING = """
for i = 1, 3 do redis.call('EXPIRE', KEYS[i], ARGV[3] + 10) end
return {
  redis.call('ZADD', KEYS[2], 'XX', 'CH', ARGV[4] + ARGV[2], ARGV[1]),
  redis.call('ZADD', KEYS[3], 'XX', 'CH', ARGV[4] + ARGV[2], ARGV[1]),
}
"""

SCRIPTS = {
    "queue": QUEUE,
    "wake_up_nexts": WAKE_UP_NEXTS,
    "acquire": ACQUIRE,
    "release": RELEASE,
    "ping": PING,
}
