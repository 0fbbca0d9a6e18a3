-- semaphore/release_many.lua: several releases of one tick at once, each of one slot, of holders and of waiters;
-- the next ones get the slots.
-- KEYS  1-7 the semaphore (semaphore/rules.lua)
-- ARGV  1 now (s; empty: the server's clock)   2 the loop client that calls, or empty
--       3 heartbeat_max_interval (s), for foreign waiters   4 pattern of foreign notification lists
--       5... the acquisition ids, none of several slots, each perhaps with a sample (base/window.lua)
-- Returns {a digit for each id: 1 if it was held, else 0}, followed by messages for
-- the caller.  Mirrors Ledger.release or Ledger.cancel for each, with one hand-over at the end.
-- include base/clock.lua
-- include base/claim.lua
-- include base/proof.lua
-- include base/hold_times.lua
-- include base/lists.lua
-- include base/window.lua
local main, ttls, waiting, waiting_heartbeat = KEYS[1], KEYS[2], KEYS[4], KEYS[5]
local state, numbers = KEYS[6], KEYS[7]
local ids, samples = {}, {}
for i = 5, #ARGV do
  local space = string.find(ARGV[i], ' ', 1, true)
  ids[i - 4] = space and string.sub(ARGV[i], 1, space - 1) or ARGV[i]
  samples[i - 4] = space and string.sub(ARGV[i], space + 1)
end
local facts = redis.call('HMGET', state, '.hold', '.window', '.rebuild', unpack(ids))
local scores = redis.call('ZMSCORE', main, unpack(ids))
local is_main_lost = facts[3] or redis.call('EXISTS', main) == 0
local digits, freed, since, with_ttl, not_held, known = {}, {}, {}, {}, {}, true
local ended = {}  -- the samples of those that were held
local number_texts, seen = {}, {}
for i, id in ipairs(ids) do
  local ttl, number, granted = ttl_and_number(facts[3 + i])
  local is_held = not seen[id] and (scores[i] or is_main_lost and number and number ~= '0')
  seen[id] = true
  digits[i] = is_held and '1' or '0'
  if not is_held then not_held[#not_held + 1] = id end
  if is_held and number then
    local count = #freed + 1
    freed[count], since[count], ended[count] = tonumber(number), tonumber(granted) or 0, samples[i] or 'i-'
    number_texts[freed[count]] = number
    if ttl ~= '-' then with_ttl[#with_ttl + 1] = id end
  else
    known = false
  end
end
local reply = {table.concat(digits)}
redis.call('ZREM', main, unpack(ids))
redis.call('HDEL', state, unpack(ids))
if #with_ttl > 0 then redis.call('ZREM', ttls, unpack(with_ttl)) end
if #not_held > 0 then
  redis.call('ZREM', waiting, unpack(not_held))
  redis.call('ZREM', waiting_heartbeat, unpack(not_held))
end
local heads = #freed > 0 and redis.call('ZRANGE', waiting, 0, #freed - 1) or {}
local hold, window, now_us = facts[1], facts[2], nil
if #heads > 0 or #freed > 0 and (window or times_all(hold)) then now_us = microseconds(ARGV[1]) end

-- How long they were held counts if somebody waits.
local is_timed = #heads > 0 or #freed > 0 and times_all(hold)
if is_timed then
  local held_for = {}
  for i = 1, #since do held_for[i] = now_us / 1000000 - since[i] end
  hold = note_holds(hold, held_for, 1)
end

-- Of an adaptive value: how many are counted before it may move.
local counted = #ended
if window and #ended > 0 then
  local before = window
  for i, sample in ipairs(ended) do
    local counting = count_in_window(window, sample, 1, since[i], now_us)
    if not counting then
      counted = i - 1
      break
    end
    window = counting
  end
  if window ~= before then redis.call('HSET', state, '.window', window) end
end

-- The common case, with few calls: as many as were freed wait, alive, each for
-- one slot and without a ttl; they take the numbers over, the lowest first.
if known and #freed > 0 and #heads == #freed and counted == #ended then
  facts = redis.call('HMGET', state, '.value', '.token', '.values', '.closed', '.paused', '.life', unpack(heads))
  local held, value = redis.call('ZCARD', main), tonumber(facts[1]) or 0
  local alive = redis.call('ZMSCORE', waiting_heartbeat, unpack(heads))
  table.sort(freed)
  local fits = held + #freed == value and not facts[4] and not facts[5] and facts[6] and freed[#freed] <= value
  if fits and has_moved(facts[3]) then  -- after a shrink, a number above the value may be held, and lower ones be free
    local lowest = redis.call('ZRANGE', numbers, 0, 0, 'WITHSCORES')
    fits = lowest[1] == 'top' or (tonumber(lowest[2]) or 0) > value
  end
  local now, token, longest, token_text = now_us / 1000000, tonumber(facts[2]) or 0, 0, nil
  local members, filed, grants, owners = {}, {}, {}, {}
  local now_text = seconds(now)
  for i, head in ipairs(heads) do
    local interval, ttl, ticket, owner
    if facts[6 + i] and not string.find(head, '*', 1, true) then
      interval, ttl, ticket, owner = waiting_claim(facts[6 + i])
    end
    if not fits or ttl ~= '-' or not alive[i] or tonumber(alive[i]) <= now then
      fits = false
      break
    end
    token = math.max(token + 1, now_us)
    longest = math.max(longest, tonumber(interval))
    local number = number_texts[freed[i]]
    token_text = whole(token)
    members[2 * i - 1], members[2 * i] = alive[i], head
    filed[2 * i - 1], filed[2 * i] = head, claim_text(interval, '-', ticket, now_text, number, token_text, owner)
    owners[i] = owner
    grants[i] = 'granted ' .. head .. ' ' .. number .. ' ' .. token_text
  end
  if fits then
    redis.call('ZREM', waiting, unpack(heads))
    redis.call('ZREM', waiting_heartbeat, unpack(heads))
    add_members(main, held, members)
    if held == 0 or redis.call('PTTL', main) < 1000 * longest then
      redis.call('PEXPIRE', main, math.ceil(2000 * longest))
    end
    redis.call('HSET', state, '.token', token_text, '.hold', hold, unpack(filed))
    local own = 'sw-' .. ARGV[2] .. '-'  -- how the ids of the caller begin
    for i, head in ipairs(heads) do
      if string.sub(head, 1, #own) == own then
        reply[#reply + 1] = grants[i]
      else
        redis.call('PUBLISH', 'slotwise:' .. client_of(head), proved(grants[i], owners[i]))
      end
    end
    return reply
  end
end
if is_timed then redis.call('HSET', state, '.hold', hold) end
if #freed > 0 and redis.call('EXISTS', numbers) == 1 then
  local back = {}
  for i, number in ipairs(freed) do back[2 * i - 1], back[2 * i] = number, number end
  redis.call('ZADD', numbers, unpack(back))
end
if redis.call('EXISTS', waiting, waiting_heartbeat) == 0 and counted == #ended then return reply end
-- include semaphore/rules.lua
open(1, ARGV[1])
caller, pattern = ARGV[2], ARGV[4]
for i = counted + 1, #ended do count_end({granted = since[i]}, 1, ended[i]) end
serve(current_value(), tonumber(ARGV[3]))
for _, message in ipairs(messages) do reply[#reply + 1] = message end
return reply
