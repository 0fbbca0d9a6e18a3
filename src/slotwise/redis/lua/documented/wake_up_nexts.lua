-- documented/wake_up_nexts.lua: end what has expired, then give free slots to the head of the
-- queue.
-- KEYS  1 main (zset member -> deadline)   2 ttl (zset id -> deadline)
--       3 waiting (zset id -> ticket)      4 waiting heartbeat (zset id -> deadline)
-- ARGV  1 limit   2 heartbeat_max_interval (s)   3 ttl (s, not used here)
--       4 now (s; empty: the server's clock)
--       5 pattern of the notification key, with @@@ACQUISITION_ID@@@ in it
-- Returns how many acquisitions were granted.  Mirrors Ledger.expire. One call ends at most AT_ONCE of each kind, and grants at
-- most as many: the next call goes on.
--
-- An id of slotwise's own client, sw-CLIENT-NUMBER or sw-CLIENT-NUMBER*SLOTS, is
-- told by a message to the channel of its loop client; any other by its list. One for n
-- slots is n members, id, id#2 ... id#n, granted all or none.
local main, ttls, waiting, waiting_heartbeat = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local limit, interval, now = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[4])
local pattern = ARGV[5]
if not now then
  local time = redis.call('TIME')
  now = time[1] + time[2] / 1000000
end
local now_text = string.format('%.6f', now)

local function outlive(key, seconds)
  local ms = math.ceil(seconds * 1000)
  if redis.call('PTTL', key) < ms then redis.call('PEXPIRE', key, ms) end
end

local function slots_of(id)
  return tonumber(string.match(id, '^sw%-.*%*(%d+)$') or 1)
end

local AT_ONCE = 300

-- Remove members whose time is up from two keys.
local function remove(over, one, other)
  if #over == 0 then return end
  redis.call('ZREM', one, unpack(over))
  redis.call('ZREM', other, unpack(over))
end

local over = redis.call('ZRANGEBYSCORE', ttls, '-inf', now_text, 'LIMIT', 0, AT_ONCE)
remove(over, main, ttls)
for _, id in ipairs(over) do
  for from = 2, slots_of(id), 1000 do
    local members = {}
    for i = from, math.min(from + 999, slots_of(id)) do members[#members + 1] = id .. '#' .. i end
    if redis.call('ZREM', main, unpack(members)) == 0 then break end
  end
end
remove(redis.call('ZRANGEBYSCORE', main, '-inf', now_text, 'LIMIT', 0, AT_ONCE), main, ttls)
remove(redis.call('ZRANGEBYSCORE', waiting_heartbeat, '-inf', now_text, 'LIMIT', 0, AT_ONCE), waiting, waiting_heartbeat)

local granted = 0
local free = limit - redis.call('ZCARD', main)
local left = AT_ONCE  -- to be looked at
while free > 0 and left > 0 do
  left = left - 1
  local id = redis.call('ZRANGE', waiting, 0, 0)[1]
  if not id then break end
  local alive_until = tonumber(redis.call('ZSCORE', waiting_heartbeat, id) or 0)
  local slots = slots_of(id)
  -- Nobody passes a head that does not fit, or small requests would starve it.
  if alive_until > now and slots > free then break end
  redis.call('ZREM', waiting, id)
  redis.call('ZREM', waiting_heartbeat, id)
  if alive_until > now then
    -- A grant is not a sign of life: a waiter that died blocks the others for no longer than if it
    -- had not been granted.
    local deadline = string.format('%.6f', alive_until)
    redis.call('ZADD', main, deadline, id)
    for from = 2, slots, 1000 do
      local words = {'ZADD', main}
      for i = from, math.min(from + 999, slots) do
        words[#words + 1] = deadline
        words[#words + 1] = id .. '#' .. i
      end
      redis.call(unpack(words))
    end
    local client = string.match(id, '^sw%-([^-]+)%-')
    if client then
      redis.call('PUBLISH', 'slotwise:' .. client, 'look ' .. id)
    else
      local from, to = string.find(pattern, '@@@ACQUISITION_ID@@@', 1, true)
      local list = string.sub(pattern, 1, from - 1) .. id .. string.sub(pattern, to + 1)
      redis.call('RPUSH', list, '1')
      outlive(list, 2 * interval)
    end
    free = free - slots
    granted = granted + 1
  end
end
if granted > 0 then outlive(main, 2 * interval) end
return granted
