-- documented/acquire.lua: confirm an announced grant, and start its ttl.
-- KEYS  1 main (zset member -> deadline)   2 ttl (zset id -> deadline)   3 max (string)
-- ARGV  1 acquisition id   2 limit   3 heartbeat_max_interval (s)   4 ttl (s; empty or 0: none)
--       5 now (s; empty: the server's clock)
-- Returns {changed, card}: changed is 1 whenever the id is a member, even if its score stays the
-- same, and 0 if the grant has gone stale; card is how many slots are held.
-- Mirrors Ledger.renew, and the grant in Ledger.request.
local main, ttls, max = KEYS[1], KEYS[2], KEYS[3]
local id, limit, interval = ARGV[1], ARGV[2], tonumber(ARGV[3])
local ttl, now = tonumber(ARGV[4]) or 0, tonumber(ARGV[5])
if not now then
  local time = redis.call('TIME')
  now = time[1] + time[2] / 1000000
end
local deadline = string.format('%.6f', now + interval)

local function outlive(key, seconds)
  local ms = math.ceil(seconds * 1000)
  if redis.call('PTTL', key) < ms then redis.call('PEXPIRE', key, ms) end
end

local changed = 0
if redis.call('ZSCORE', main, id) then
  changed = 1
  -- Never refused, and then neither is what follows: a server at its maxmemory checks only a
  -- script's first write.
  redis.call('ZREM', main, '')
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
  outlive(main, 2 * interval)
  if ttl > 0 then
    redis.call('ZADD', ttls, string.format('%.6f', now + ttl), id)
    outlive(ttls, ttl + interval)
  end
  redis.call('SET', max, limit, 'KEEPTTL')
  outlive(max, ttl + 2 * interval)
end
return {changed, redis.call('ZCARD', main)}
