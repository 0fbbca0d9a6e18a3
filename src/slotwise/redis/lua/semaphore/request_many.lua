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
    local ticket, deadline = math.max(now, (last or 0) + 0.000001), string.format('%.6f', now + interval)
    local ttl = ARGV[4] == '' and '-' or ARGV[4]
    local tickets, deadlines, filed = {}, {}, {}
    for i = 10, #ARGV do
      local text = string.format('%.6f', ticket)
      tickets[#tickets + 1] = text
      tickets[#tickets + 1] = ARGV[i]
      deadlines[#deadlines + 1] = deadline
      deadlines[#deadlines + 1] = ARGV[i]
      filed[#filed + 1] = ARGV[i]
      filed[#filed + 1] = waiting_claim_text(ARGV[3], ttl, text, ARGV[6])
      ticket = tonumber(text) + 0.000001
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
open(1, ARGV[1])
pattern = ARGV[8]
local replies = {'each'}
for i = 10, #ARGV do
  replies[#replies + 1] = request(ARGV[i], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[9],
                                  ARGV[5] == 'again', ARGV[6])
end
return replies
