-- documented/release.lua: release an acquisition, or leave the queue.
-- KEYS  1 main (zset)   2 ttl (zset)   3 waiting (zset)   4 waiting heartbeat (zset)
-- ARGV  1 acquisition id
-- Returns 1 if it was held, else 0.  Mirrors Ledger.release and Ledger.cancel,
-- without the hand-over: nobody is woken (semaphore/release.lua does that).
--
-- An id of slotwise's own client that ends in *N has N members, id, id#2 ... id#N, all or
-- none. Such a member is not an id: it is a part of an acquisition.
local main, ttls, waiting, waiting_heartbeat = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id = ARGV[1]
if string.match(id, '^sw%-.*%*%d+#%d+$') then return 0 end

-- Remove the other members of an id that has several, as far as they are there.
local function remove_others(id)
  local slots = tonumber(string.match(id, '^sw%-.*%*(%d+)$') or 1)
  for from = 2, slots, 1000 do
    local members = {}
    for i = from, math.min(from + 999, slots) do members[#members + 1] = id .. '#' .. i end
    if redis.call('ZREM', main, unpack(members)) == 0 then break end
  end
end

local removed = redis.call('ZREM', main, id)
remove_others(id)
redis.call('ZREM', ttls, id)
redis.call('ZREM', waiting, id)
redis.call('ZREM', waiting_heartbeat, id)
return removed
