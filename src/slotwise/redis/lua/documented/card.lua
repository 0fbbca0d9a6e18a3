-- documented/card.lua: end what has expired, and count the slots that are held.
-- KEYS  1 main (zset member -> deadline)   2 ttl (zset id -> deadline)
-- ARGV  1 now (s; empty: the server's clock)
-- Returns the count.  Mirrors Ledger.expire and Ledger.in_use, granting nothing. If very many have expired, one call ends
-- some of them, and counts none.
local main, ttls = KEYS[1], KEYS[2]
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] + time[2] / 1000000
end
local now_text = string.format('%.6f', now)

-- Remove the other members of an id that has several, as far as they are there.
local function remove_others(id)
  local slots = tonumber(string.match(id, '^sw%-.*%*(%d+)$') or 1)
  for from = 2, slots, 1000 do
    local members = {}
    for i = from, math.min(from + 999, slots) do members[#members + 1] = id .. '#' .. i end
    if redis.call('ZREM', main, unpack(members)) == 0 then break end
  end
end

local AT_ONCE = 1000
local over = redis.call('ZRANGEBYSCORE', ttls, '-inf', now_text, 'LIMIT', 0, AT_ONCE)
if #over > 0 then
  redis.call('ZREM', main, unpack(over))
  redis.call('ZREM', ttls, unpack(over))
end
for _, id in ipairs(over) do
  if string.find(id, '*', 1, true) then remove_others(id) end
end
local silent = redis.call('ZRANGEBYSCORE', main, '-inf', now_text, 'LIMIT', 0, AT_ONCE)
if #silent > 0 then redis.call('ZREM', main, unpack(silent)) end
if #over < AT_ONCE and #silent < AT_ONCE then return redis.call('ZCARD', main) end
local alive, left = redis.call('ZCOUNT', main, '(' .. now_text, '+inf'), redis.call('ZCOUNT', ttls, '-inf', now_text)
return math.max(alive - left, 0)
