-- documented/queue.lua: join the queue.
-- KEYS  1 waiting (zset id -> ticket)   2 waiting heartbeat (zset id -> deadline)
-- ARGV  1 acquisition id   2 heartbeat_max_interval (s)   3 ttl (s, not used here)
--       4 now (s; empty: the server's clock)
-- Returns 1 if the id is new in the queue, 0 if it was there already (it keeps its place).
-- Mirrors the queueing half of Ledger.request.
--
-- The ticket is max(now, last + 1 us): strictly increasing, within one
-- microsecond too, and when a clock steps back. The score of one with a head start is not
-- its ticket, and pushes nobody back: its id has a "^".
local waiting, waiting_heartbeat = KEYS[1], KEYS[2]
local id, interval, now = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[4])
if not now then
  local time = redis.call('TIME')
  now = time[1] + time[2] / 1000000
end

local function outlive(key, seconds)  -- EXPIRE never shortens a key's life
  local ms = math.ceil(seconds * 1000)
  if redis.call('PTTL', key) < ms then redis.call('PEXPIRE', key, ms) end
end

local added = 0
if not redis.call('ZSCORE', waiting, id) then
  local ticket = now
  local last = redis.call('ZREVRANGE', waiting, 0, 99, 'WITHSCORES')
  for i = 1, #last, 2 do
    if not string.find(last[i], '^', 1, true) then
      ticket = math.max(now, tonumber(last[i + 1]) + 0.000001)
      break
    end
  end
  added = redis.call('ZADD', waiting, string.format('%.6f', ticket), id)
end
redis.call('ZADD', waiting_heartbeat, string.format('%.6f', now + interval), id)
outlive(waiting, 2 * interval)
outlive(waiting_heartbeat, 2 * interval)
return added
