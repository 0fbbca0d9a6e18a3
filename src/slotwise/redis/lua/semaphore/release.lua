-- semaphore/release.lua: release an acquisition, or remove it from the queue; the next waiters get the
-- slots at once.
-- KEYS  1-7 the semaphore (semaphore/rules.lua)
-- ARGV  1 now (s; empty: the server's clock)   2 acquisition id, perhaps with a sample (base/window.lua)
--       3 the loop client that calls, or empty
--       4 heartbeat_max_interval (s), for foreign waiters   5 pattern of foreign notification lists
--       6 "count" to be told how full it is, else empty
-- Returns {slots it held, 1 if it waited in line, how full it is}, followed by messages for the caller. The
-- third is 0, or if asked for {value, held, waiting (a text while it is paused: "number ms"), the oldest holders
-- (semaphore/oldest_holders.lua)}.
-- Mirrors Ledger.release and Ledger.cancel.
-- include base/clock.lua
-- include base/claim.lua
-- include base/proof.lua
-- include base/hold_times.lua
-- include base/window.lua
local released, freed = 0, nil
local space = string.find(ARGV[2], ' ', 1, true)  -- between an id and a sample
local id = space and string.sub(ARGV[2], 1, space - 1) or ARGV[2]
if not string.find(id, '*', 1, true) and ARGV[6] == '' then
  -- The common cases, with fewer calls: one slot, which nobody waits for, or which
  -- goes as it is, number and all, to the first in line.
  local main, waiting, waiting_heartbeat, state, numbers = KEYS[1], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
  local queues = redis.call('EXISTS', waiting, waiting_heartbeat)
  local head = queues > 0 and redis.call('ZRANGE', waiting, 0, 0)[1]
  local facts
  if queues == 0 then
    facts = redis.call('HMGET', state, id, '.hold', '.window')
  else
    facts = redis.call('HMGET', state, id, '.hold', '.window', head or '', '.value', '.token', '.closed', '.values',
                       '.paused', '.life')
  end
  local ttl, number, granted = ttl_and_number(facts[1])
  local hold, window = facts[2], facts[3]
  local is_timed = queues > 0 or times_all(hold)
  local now_us = (is_timed or window) and microseconds(ARGV[1])
  local counted = window and number and count_in_window(window, space and ARGV[2] or ' i-', (space or 1) + 1,
                                                         granted, now_us)
  -- If an adaptive value may move, the second half does that.
  if counted or not window then released = redis.call('ZREM', main, id) end
  if released == 1 and counted then redis.call('HSET', state, '.window', counted) end
  if released == 1 and number then
    freed = tonumber(number)
    if ttl ~= '-' then redis.call('ZREM', KEYS[2], id) end
    redis.call('HDEL', state, id)
    if is_timed then hold = note_holds(hold, {now_us / 1000000 - (tonumber(granted) or 0)}, 1) end
    if is_timed and queues == 0 then redis.call('HSET', state, '.hold', hold) end
    if queues == 0 then
      if redis.call('EXISTS', numbers) == 1 then redis.call('ZADD', numbers, number, number) end
      return {1, 0, 0}
    end
    local interval, head_ttl, ticket, owner
    if facts[4] and not facts[7] and not facts[9] and facts[10] and not string.find(head, '*', 1, true) then
      interval, head_ttl, ticket, owner = waiting_claim(facts[4])
    end
    local value = tonumber(facts[5]) or 0
    -- After a shrink, a number above the value may be held, and a lower one be free.
    if head_ttl == '-' and has_moved(facts[8]) then
      local lowest = redis.call('ZRANGE', numbers, 0, 0, 'WITHSCORES')
      if lowest[1] ~= 'top' and (tonumber(lowest[2]) or 0) <= value then head_ttl = nil end
    end
    if head_ttl == '-' and freed <= value and redis.call('ZCARD', main) == value - 1 then
      local alive_until = redis.call('ZSCORE', waiting_heartbeat, head)
      if alive_until and tonumber(alive_until) > now_us / 1000000 then
        local token = whole(math.max((tonumber(facts[6]) or 0) + 1, now_us))
        redis.call('ZREM', waiting_heartbeat, head)
        redis.call('ZREM', waiting, head)
        redis.call('ZADD', main, alive_until, head)
        if value == 1 or redis.call('PTTL', main) < 1000 * interval then
          redis.call('PEXPIRE', main, math.ceil(2000 * interval))
        end
        redis.call('HSET', state, '.token', token, '.hold', hold, head,
                   claim_text(interval, '-', ticket, seconds(now_us / 1000000), number, token, owner))
        local message = 'granted ' .. head .. ' ' .. number .. ' ' .. token
        local client = client_of(head)
        if client == ARGV[3] then return {1, 0, 0, message} end
        redis.call('PUBLISH', 'slotwise:' .. client, proved(message, owner))
        return {1, 0, 0}
      end
    end
    if redis.call('EXISTS', numbers) == 1 then redis.call('ZADD', numbers, number, number) end
    redis.call('HSET', state, '.hold', hold)
  end
end
-- include semaphore/rules.lua
-- include semaphore/oldest_holders.lua
open(1, ARGV[1])
local interval, counted = tonumber(ARGV[4]), ARGV[6] ~= ''
caller, pattern = ARGV[3], ARGV[5]

local waited = 0
if not freed then released = math.max(released, drop(id, space and string.sub(ARGV[2], space + 1))) end
if released == 0 then waited = leave_queue(id) end
local value = current_value()
serve(value, interval)
local reply = {released, waited, 0}
if counted then
  -- A foreign client may have told it through a list that nobody reads.
  local from, to = string.find(pattern, '@@@ACQUISITION_ID@@@', 1, true)
  if from then
    redis.call('DEL', string.sub(pattern, 1, from - 1) .. id .. string.sub(pattern, to + 1))
  end
  local held = redis.call('ZCARD', main)
  reply[3] = {value or 0, held, waiting_text(redis.call('ZCARD', waiting)), oldest_holders(held)}
end
for _, message in ipairs(messages) do reply[#reply + 1] = message end
return reply
