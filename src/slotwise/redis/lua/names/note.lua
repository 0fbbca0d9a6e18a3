-- names/note.lua: remember which names are in use, so that they are found without a SCAN.
-- KEYS  1 names  zset  "semaphore name" or "tiers name" -> when it was last used (s)
-- ARGV  1 now (s; empty: the server's clock)   2 for how long a name is remembered (s)
--       3 and more: the members
-- Returns 1. The set can be lost at any time: names are then found by SCAN.
-- include base/clock.lua
local names, life = KEYS[1], tonumber(ARGV[2])
local now = microseconds(ARGV[1]) / 1000000
local words = {'ZADD', names}
for i = 3, #ARGV do
  words[#words + 1] = seconds(now)
  words[#words + 1] = ARGV[i]
end
local refused = redis.pcall(unpack(words))
if type(refused) == 'table' and refused.err then
  if not string.find(refused.err, 'WRONGTYPE', 1, true) then return refused end
  redis.call('DEL', names)  -- damaged: only this script writes it
  redis.call(unpack(words))
end
-- Not all at once, should very many have been used once.
local over = redis.call('ZRANGEBYSCORE', names, '-inf', seconds(now - life), 'LIMIT', 0, 1000)
if #over > 0 then redis.call('ZREM', names, unpack(over)) end
redis.call('PEXPIRE', names, life * 1000)
return 1
