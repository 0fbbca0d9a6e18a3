-- semaphore/request.lua: take slots, or else wait: queue, wake_up_nexts and acquire in one.
-- KEYS  1-7 the semaphore (semaphore/rules.lua)
-- ARGV  1 now (s; empty: the server's clock)   2 acquisition id
--       3 the value the caller was made with, or its rules if it adapts (semaphore/rules.lua)
--       4 heartbeat_max_interval (s)   5 ttl (s; empty: none)
--       6 "wait" or "try"; "wait N" waits only while fewer than N others do, "-" being any number;
--       followed by "shed S", only if it is expected to be served within S seconds; "replace" kicks
--       the longest holders, and waits in front if that takes time, "replace try" only if it
--       doesn't   7 "again" if it may have been asked before, else empty
--       8 owner: "!secret host pid label"   9 pattern of foreign notification lists
--       10 "due" to be told when the next deadline is, else empty
-- Returns {"granted", number, token, value}
--         {"queued", value, ms until the next deadline, or -1, or -2 (next_end in semaphore/rules.lua)}
--         {"busy", value, held, waiting, the oldest holders (semaphore/oldest_holders.lua)}
--                                                  only for "try"; nothing has changed
--         {"full", value, held, waiting, when it would be served (s) or "", 1 if that is too late, else 0}
--                                                  it may not wait; nothing has changed
--                                                  in both, waiting is a text while it is paused: "number ms"
--         {"conflict", value, held, waiting, its rules if it adapts}   in use with another value
--         {"too many", value}                      more slots than there are
--         {"closed", the reason if there is one}   for everybody, until reopen.lua
-- followed by messages for the caller.
-- Mirrors Ledger.request and Ledger.try_request.
--
-- The first half does the same as the second, with fewer calls, for the common cases: one slot that
-- is free, or none. It ends nothing that has expired: waiters see to that. It rebuilds nothing that
-- was evicted: if a key is missing that should exist, the second half does that.
-- include base/clock.lua
-- include base/claim.lua
-- include base/lists.lua
-- include semaphore/queued_reply.lua
do
  local main, waiting, state, numbers = KEYS[1], KEYS[4], KEYS[6], KEYS[7]
  local id, interval, now_us = ARGV[2], tonumber(ARGV[4]), microseconds(ARGV[1])
  local facts = redis.call('HMGET', state, '.value', '.values', '.closed', '.life', '.token', '.interval', '.beat',
                           '.orphans', '.evicted', '.hold', '.paused', '.ticket')
  local value, now = tonumber(facts[1]), now_us / 1000000
  local enough_us = now_us + interval * 1000000
  if value and facts[2] == ',' .. ARGV[3] .. ',' and not facts[3] and not facts[11] and not facts[12] and ARGV[7] == ''
      and (tonumber(facts[4]) or 0) >= enough_us and not string.find(id, '*', 1, true)
      and (ARGV[6] == 'wait' or not string.find(ARGV[6], 'shed', 1, true)) then
    local held = redis.call('ZCARD', main)
    local queues = redis.call('EXISTS', waiting, KEYS[5])
    local last = queues > 0 and redis.call('ZREVRANGE', waiting, 0, 0, 'WITHSCORES')[2]
    -- Times with whole numbers of seconds and microseconds: "%.6f" of a double takes far longer.
    local now_text = string.format('%d.%06d', now, now_us % 1000000)
    local deadline_us = math.floor(enough_us + 0.5)
    local deadline = string.format('%d.%06d', deadline_us / 1000000, deadline_us % 1000000)
    local is_whole = queues ~= 1  -- both exist, or neither
    if held == 0 and is_whole then
      local claims = redis.call('HLEN', state) - 3  -- without the facts that are there
      for i = 5, 10 do
        if facts[i] then claims = claims - 1 end
      end
      if not tonumber(ARGV[3]) then claims = claims - 3 end  -- those of a value that adapts
      is_whole = claims <= 0
    end
    if is_whole and held < value and not last and ARGV[5] == '' then
      -- The lowest free number: of the free ones, or above the highest so far. None if lost.
      local lowest = redis.call('ZRANGE', numbers, 0, 0)[1]
      local low, high = string.match(lowest or '', '^(%d+)%-?(%d*)$')
      local number = tonumber(low)
      if lowest == 'top' then number = (tonumber(redis.call('ZSCORE', numbers, 'top')) or -1) + 1 end
      if number and number >= 1 and number <= value then
        local token = math.max((tonumber(facts[5]) or 0) + 1, now_us)
        if held == MANY - 1 then add_members(main, held, {deadline, id}) else redis.call('ZADD', main, deadline, id) end
        if held == 0 or redis.call('PTTL', main) < 1000 * interval then
          redis.call('PEXPIRE', main, math.ceil(2000 * interval))
        end
        if lowest == 'top' then
          redis.call('ZADD', numbers, number, 'top')
        else
          redis.call('ZREM', numbers, lowest)
          if high ~= '' then
            local rest = number + 1 < tonumber(high) and number + 1 .. '-' .. high or high
            redis.call('ZADD', numbers, number + 1, rest)
          end
        end
        local token_text = whole(token)
        redis.call('HSET', state, '.token', token_text, id,
                   claim_text(ARGV[4], '-', now_text, now_text, number, token_text, ARGV[8]))
        return {'granted', number, token, value}
      end
    elseif is_whole and held >= value and (ARGV[6] == 'wait' or (ARGV[6] ~= 'try' and may_queue(ARGV[6], 1))) then
      local waiting_heartbeat, ticket = KEYS[5], now_text
      local ticket_us = last and math.floor(tonumber(last) * 1000000 + 0.5) + 1 or 0
      if ticket_us > now_us then ticket = string.format('%d.%06d', ticket_us / 1000000, ticket_us % 1000000) end
      redis.call('ZADD', waiting, ticket, id)
      redis.call('ZADD', waiting_heartbeat, deadline, id)
      -- The two are always extended together.
      if not last or redis.call('PTTL', waiting_heartbeat) < 1000 * interval then
        redis.call('PEXPIRE', waiting, math.ceil(2000 * interval))
        redis.call('PEXPIRE', waiting_heartbeat, math.ceil(2000 * interval))
      end
      local ttl = ARGV[5] == '' and '-' or ARGV[5]
      redis.call('HSET', state, id, waiting_claim_text(ARGV[4], ttl, ticket, ARGV[8]))
      return queued_reply(value, held, now, interval, ARGV[10] ~= '')
    end
  end
end
-- include semaphore/request_rule.lua
open(1, ARGV[1])
pattern = ARGV[9]
return request(ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6],
               ARGV[7] == 'again', ARGV[8])
