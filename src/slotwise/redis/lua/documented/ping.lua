-- documented/ping.lua: a sign of life of one holder or waiter.
-- KEYS  1 waiting (zset id -> ticket; only kept from expiring: the place in the queue stays)
--       2 waiting heartbeat (zset id -> deadline)   3 main (zset member -> deadline)
-- ARGV  1 acquisition id   2 heartbeat_max_interval (s)   3 ttl (s, not used here: a
--       heartbeat never extends it)   4 now (s; empty: the server's clock)
-- Returns {waits, holds}: 1 where the id was found alive. {0, 0}: it was dropped as dead.
-- Mirrors Ledger.renew.
local waiting, waiting_heartbeat, main = KEYS[1], KEYS[2], KEYS[3]
local id, interval, now = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[4])
if not now then
  local time = redis.call('TIME')
  now = time[1] + time[2] / 1000000
end
local deadline = string.format('%.6f', now + interval)

local function outlive(key, seconds)
  local ms = math.ceil(seconds * 1000)
  local left = redis.call('PTTL', key)
  if left ~= -2 and left < ms then redis.call('PEXPIRE', key, ms) end
end

-- Never refused, and then neither is what follows: a server at its maxmemory checks only a script's
-- first write.
redis.call('ZREM', waiting_heartbeat, '')
local waits, holds = 0, 0
if redis.call('ZSCORE', waiting_heartbeat, id) then
  waits = 1
  redis.call('ZADD', waiting_heartbeat, 'XX', deadline, id)
end
if redis.call('ZSCORE', main, id) then
  holds = 1
  redis.call('ZADD', main, 'XX', deadline, id)
  -- Its other members, as far as they are there: an id with a made-up number of millions delays nobody for long.
  local slots = tonumber(string.match(id, '^sw%-.*%*(%d+)$') or 1)
  for from = 2, slots, 1000 do
    local words = {'ZADD', main, 'XX', 'CH'}
    for i = from, math.min(from + 999, slots) do
      words[#words + 1] = deadline
      words[#words + 1] = id .. '#' .. i
    end
    if redis.call(unpack(words)) == 0 then break end
  end
end
outlive(waiting, 2 * interval)
outlive(waiting_heartbeat, 2 * interval)
outlive(main, 2 * interval)
return {waits, holds}
