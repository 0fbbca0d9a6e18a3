-- semaphore/request_many.lua: several requests of one tick wait at once, each for one slot.
-- KEYS  1-7 the semaphore (semaphore/rules.lua)
-- ARGV  1 now (s; empty: the server's clock)   2 the value the callers were made with, or its rules
--       3 heartbeat_max_interval (s)   4 ttl (s; empty: none)
--       5 "again" if they may have been asked before, else empty   6 owner: "!secret host pid label"
--       7 "due" to be told when the next deadline is, else empty
--       8 pattern of foreign notification lists   9 "wait" or "wait N", as for request.lua
--       10... the acquisition ids
-- Returns {"queued", value, ms until the next deadline, or -1, or -2 (next_end in semaphore/rules.lua)},
--          all of them, in their order
--         {"each", what request.lua would reply to the first, to the second ...}
-- Mirrors Ledger.request for each. The first half is for a ledger that is full.
-- include base/clock.lua
-- include base/claim.lua
-- include semaphore/queued_reply.lua
do
  local main, waiting, waiting_heartbeat, state = KEYS[1], KEYS[4], KEYS[5], KEYS[6]
  local interval, now_us = tonumber(ARGV[3]), microseconds(ARGV[1])
  local facts = redis.call('HMGET', state, '.value', '.values', '.closed', '.life', '.paused', '.ticket')
  local value, now, held = tonumber(facts[1]), now_us / 1000000, redis.call('ZCARD', main)
  local enough_us = now_us + interval * 1000000
  if value and facts[2] == ',' .. ARGV[2] .. ',' and not facts[3] and not facts[5] and not facts[6] and ARGV[5] == ''
      and (tonumber(facts[4]) or 0) >= enough_us and held >= value
      and may_queue(ARGV[9], #ARGV - 9) and redis.call('EXISTS', waiting, waiting_heartbeat) ~= 1 then
    local last = tonumber(redis.call('ZREVRANGE', waiting, 0, 0, 'WITHSCORES')[2])
    -- Times with whole numbers of seconds and microseconds: "%.6f" of a double takes far longer.
    local ticket_us = math.max(now_us, math.floor((last or 0) * 1000000 + 0.5) + 1)
    local deadline_us = math.floor(enough_us + 0.5)
    local deadline = string.format('%d.%06d', deadline_us / 1000000, deadline_us % 1000000)
    local ttl = ARGV[4] == '' and '-' or ARGV[4]
    local tickets, deadlines, filed = {}, {}, {}
    for i = 10, #ARGV do
      local id, at = ARGV[i], 2 * (i - 9)
      local ticket = string.format('%d.%06d', ticket_us / 1000000, ticket_us % 1000000)
      tickets[at - 1], tickets[at] = ticket, id
      deadlines[at - 1], deadlines[at] = deadline, id
      filed[at - 1], filed[at] = id, waiting_claim_text(ARGV[3], ttl, ticket, ARGV[6])
      ticket_us = ticket_us + 1
    end
    redis.call('ZADD', waiting, unpack(tickets))
    redis.call('ZADD', waiting_heartbeat, unpack(deadlines))
    if not last or redis.call('PTTL', waiting_heartbeat) < 1000 * interval then
      redis.call('PEXPIRE', waiting, math.ceil(2000 * interval))
      redis.call('PEXPIRE', waiting_heartbeat, math.ceil(2000 * interval))
    end
    redis.call('HSET', state, unpack(filed))
    return queued_reply(value, held, now, interval, ARGV[7] ~= '')
  end
end
-- include semaphore/request_rule.lua
work_left = math.max(AT_ONCE - (#ARGV - 9) / 4, AT_ONCE / 2)  -- the more requests, the less else it does
open(1, ARGV[1])
pattern = ARGV[8]

-- The soonest end is searched for once: none of these, who all have one interval, can end sooner. Only a grant with a ttl
-- can, which one of them may have got.
local first_end = next_end
local known_end
next_end = function()
  if unfinished or rebuilding then return 0 end
  known_end = known_end or first_end()
  local first_ttl = tonumber(redis.call('ZRANGE', ttls, 0, 0, 'WITHSCORES')[2])
  if not first_ttl or known_end == -2 then return known_end end
  local left = math.max(math.ceil((first_ttl - now) * 1000), 0)
  return known_end == -1 and left or math.min(known_end, left)
end
local replies = {'each'}
for i = 10, #ARGV do
  replies[#replies + 1] = request(ARGV[i], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[9],
                                  ARGV[5] == 'again', ARGV[6])
end
return replies
