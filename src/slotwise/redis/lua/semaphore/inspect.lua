-- semaphore/inspect.lua: how full a semaphore is and, on request, who holds or waits.
-- KEYS  1-7 the semaphore (semaphore/rules.lua)
-- ARGV  1 now (s; empty: the server's clock)   2 "counts", "holders", "waiters", "estimate" or
--       "changes"
--       3 pattern of foreign notification lists   4 heartbeat_max_interval (s)
--       5 where to continue the list, empty at first; for "estimate", for how many slots
-- Returns {value or 0, held, waiting (a text while it is paused: "number ms"), 1 if closed and 2 if for a reason, the reason or "",
-- where to continue, or "" at the end}, followed for "estimate" by when a newcomer would be served (s)
-- or "" if unknown; for "counts", 1 if an adaptive value is frozen, else 0; for "changes", the rules of an adaptive value or "", 1 if it is frozen, else 0,
-- and how it has moved (semaphore/rules.lua); for lists, for each one the id, since when (s) and
-- its claim, "" for a foreign one. Lists of up to PAGE members come in one call; of longer ones
-- each call has a part, in which an entry may appear twice. Waiters come in their order.
-- Mirrors Ledger.expire, then reads.
-- include semaphore/rules.lua
-- include semaphore/estimate.lua
open(1, ARGV[1])
pattern = ARGV[3]
end_ttls()
drop_silent()
local text = redis.call('HGET', state, '.value') or redis.call('GET', max)
local value = tonumber(text or nil)
if text and not (value and value >= 1 and value <= 2^53 and value == math.floor(value)) then
  return redis.error_reply('ERR its value is not a number of slots: ' .. string.sub(text, 1, 40))
end
serve(value, tonumber(ARGV[4]))
local facts = redis.call('HMGET', state, '.closed', '.reason')
if facts[1] then keep_closed() end
local closed = facts[1] and (facts[2] and 2 or 1) or 0
local reply = {
  value or 0, redis.call('ZCARD', main), waiting_text(redis.call('ZCARD', waiting)), closed, facts[2] or '', '',
}

-- Ids, and since when each waits.
local function list(ids, since)
  if #ids == 0 then return end
  local claims = redis.call('HMGET', state, unpack(ids))
  for i, id in ipairs(ids) do
    reply[#reply + 1] = id
    reply[#reply + 1] = since and since[i] or ''
    reply[#reply + 1] = claims[i] or ''
  end
end

local from, ids, since = ARGV[5], {}, {}
if ARGV[2] == 'counts' then
  local window = redis.call('HGET', state, '.window')
  reply[7] = window and string.byte(window) == 2 and 1 or 0
end
if ARGV[2] == 'holders' then
  local members, step = nil, 1
  if from == '' and redis.call('ZCARD', main) <= PAGE then
    members = redis.call('ZRANGE', main, 0, -1)
  else
    -- Deadlines change all the time: going through them in order might miss some.
    local found = redis.call('ZSCAN', main, from == '' and '0' or from, 'COUNT', PAGE)
    reply[6] = found[1] ~= '0' and found[1] or ''
    members, step = found[2], 2
  end
  for i = 1, #members, step do
    if id_of(members[i]) == members[i] then ids[#ids + 1] = members[i] end
  end
  list(ids)
elseif ARGV[2] == 'waiters' then
  local found = redis.call('ZRANGEBYSCORE', waiting, from == '' and '-inf' or '(' .. from, '+inf', 'WITHSCORES',
                           'LIMIT', 0, PAGE)
  for i = 1, #found, 2 do
    local head_start = head_start_of(found[i])
    ids[#ids + 1] = found[i]
    since[#since + 1] = head_start == 0 and found[i + 1] or seconds(tonumber(found[i + 1]) + head_start)
  end
  if #ids == PAGE then reply[6] = found[2 * PAGE] end
  list(ids, since)
elseif ARGV[2] == 'changes' then
  local kept = redis.call('HMGET', state, '.values', '.changes')
  reply[7], reply[8], reply[9] = rules_in(kept[1]) or '', find_adaptation() and adaptation.frozen or 0, kept[2] or ''
elseif ARGV[2] == 'estimate' then
  local slots = tonumber(from)
  reply[7] = value and closed == 0 and estimates.estimate_text(estimate(slots, value, reply[2], redis.call('ZCARD', waiting))) or value and '' or '0'
end
return reply
