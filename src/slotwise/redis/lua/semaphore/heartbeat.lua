-- semaphore/heartbeat.lua: the heartbeats of a whole process; the reply tells which acquisitions have changed state.
-- KEYS  7 for each semaphore (semaphore/rules.lua), one after the other
-- ARGV  1 now (s; empty: the server's clock)   2 the loop client that calls, or empty
--       then for each semaphore: heartbeat_max_interval (s), pattern of foreign
--       notification lists, how many holders, how many waiters, the holders' ids, the waiters' ids;
--       a holder of many slots comes in parts, "id#first-last", of which each stands for those slots
-- Returns for each semaphore {ms until the next deadline, or -1, or -2 (next_end), what each that was not
-- simply renewed came to: "lost id", "lost id kept", "gone id", "granted id number token" ...}
-- "lost" is a holder that no longer holds anything, "gone" a waiter that is not in the queue.
-- "kept": nobody gets its slots before it has read this and released them, or its time is up. A
-- semaphore with a damaged key has {-1, "failed why"}, and does not affect the others. "full" in the
-- first reply: the server is at its maxmemory, which refuses newcomers and no heartbeats.
-- Mirrors Ledger.renew for each, then Ledger.expire.
-- include semaphore/rules.lua

-- The claims of some ids, as texts by id, in few calls.
local function texts_of(ids)
  local found = {}
  for from = 1, #ids, CHUNK do
    local to = math.min(from + CHUNK - 1, #ids)
    local texts = redis.call('HMGET', state, unpack(ids, from, to))
    for i = 1, to - from + 1 do found[ids[from + i - 1]] = texts[i] or nil end
  end
  return found
end

-- Those of the ids that have a claim, as a set.
local function claimed(ids)
  local found = texts_of(ids)
  for id, text in pairs(found) do found[id] = parse_claim(text) and true or nil end
  return found
end

-- The tokens of some claims, by id; those of garbage are missing.
local function tokens_of(ids)
  local found = texts_of(ids)
  for id, text in pairs(found) do
    local _, token = numbers_in(text)
    found[id] = token
  end
  return found
end

-- A client that knows only documented scripts has granted a waiter of ours.
-- One slot: complete the grant. Several, of which only the first was granted: back to its old place
-- in the queue, since all are granted or none.
local function complete(id, claim, value, interval)
  if not claim then
    drop(id)
    return 'gone ' .. id
  end
  local slots = slots_of(id)
  if (slots > 1 and not redis.call('ZSCORE', main, id .. '#' .. slots))
      or not allot(id, claim, value or slots) then
    drop(id)
    write_claim(id, claim)
    redis.call('ZADD', waiting, place_of(id, claim.ticket), id)
    redis.call('ZADD', waiting_heartbeat, seconds(now + claim.interval), id)
    return nil
  end
  hold(id, claim, redis.call('HGET', state, '.token'), interval)
  local from, to = string.find(pattern, '@@@ACQUISITION_ID@@@', 1, true)
  if from then  -- the list that nobody reads
    redis.call('DEL', string.sub(pattern, 1, from - 1) .. id .. string.sub(pattern, to + 1))
  end
  return 'granted ' .. id .. ' ' .. whole(claim.number) .. ' ' .. whole(claim.token)
end

local function mend_some()
  local filed = redis.call('HLEN', state) - USUAL_FACTS - redis.call('HEXISTS', state, '.hold')
                - redis.call('HEXISTS', state, '.ticket') - ADAPTIVE_FACTS * redis.call('HEXISTS', state, '.adapt')
  if filed > redis.call('ZCARD', main) + redis.call('ZCARD', waiting) then
    mend(redis.call('HRANDFIELD', state, math.max(math.ceil(work_left), 1)))
  end
end

-- Tickets far in the future are garbage, or of those that came after garbage: they are too large to
-- differ by a microsecond. Living waiters get new ones, in their order; some at a time.
local FAR = 10^8  -- (s): no clock was ever set back that far, and nobody has such a head start
local function mend_tickets()
  local last = tonumber(redis.call('ZREVRANGE', waiting, 0, 0, 'WITHSCORES')[2])
  if not last or last < now + FAR then return end
  local ids = redis.call('ZRANGEBYSCORE', waiting, seconds(now + FAR), '+inf', 'LIMIT', 0, AT_ONCE / 2)
  local ticket = now
  for _, id in ipairs(ids) do
    if redis.call('ZSCORE', waiting_heartbeat, id) then
      ticket = ticket + 0.000001
      redis.call('ZADD', waiting, seconds(ticket), id)
      local claim = read_claim(id)
      if claim then
        claim.ticket = seconds(ticket)
        write_claim(id, claim)
      end
    else
      leave_queue(id)
      redis.call('HDEL', state, id)
    end
  end
end

-- For one semaphore, whose keys begin at KEYS[first] and arguments at ARGV[at].
local function renew_name(first, at)
  -- Each name has its part of what a call may do, and whoever has many members renewed has less.
  work_left = math.ceil(math.max(AT_ONCE - #ARGV / 30, AT_ONCE / 2) * 7 / #KEYS)
  open(first, ARGV[1])
  caller, messages, unfinished = ARGV[2], {}, false
  local interval, holders, waiters = tonumber(ARGV[at]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  pattern = ARGV[at + 1]
  local ids, firsts, lasts = {}, {}, {}
  for i = 1, holders + waiters do
    ids[i] = ARGV[at + 3 + i]
    if string.find(ids[i], '#', 1, true) then
      local id, first_slot, last_slot = string.match(ids[i], '^(.*)#(%d+)%-(%d+)$')
      ids[i], firsts[i], lasts[i] = id, tonumber(first_slot), tonumber(last_slot)
    end
  end

  local facts = redis.call('HMGET', state, '.interval', '.value', '.orphans', '.evicted', '.closed', '.reason')
  local longest = math.max(tonumber(facts[1]) or 0, interval)
  local is_known = tonumber(facts[2])  -- if not, state was lost
  if not is_known and holders + waiters > 0 then note_orphans() end
  -- Without a claim, slot numbers are unknown: holders are lost, waiters request again.
  local filed = (facts[3] or not is_known) and claimed(ids)
  local deadline = seconds(now + interval)
  local evicted_at, last_token = string.match(facts[4] or '', '^(%S+) (%d+)$')
  if evicted_at and now > evicted_at + longest then redis.call('HDEL', state, '.evicted') end

  end_ttls()
  local value = current_value()
  -- Renewed before silent ones are dropped: one that is late, but not dropped yet, lives.
  local held = present(main, ids, 1, holders)
  local queued = present(waiting, ids, holders + 1, #ids)
  -- Those that held slots when main was found lost, and the last token was this one, have lost them.
  local asked = {}
  for i = 1, (evicted_at or rebuilding) and holders or 0 do
    if evicted_at or not held[ids[i]] then asked[#asked + 1] = ids[i] end
  end
  local tokens = tokens_of(asked)
  last_token = evicted_at and tonumber(last_token) or -1
  local members, waiting_ids, lost, left, outcome = {}, {}, {}, {}, {}
  for i = 1, holders do
    local id = ids[i]
    local its_token = tokens[id]
    if held[id] and (filed and not filed[id] or its_token and its_token <= last_token) then
      outcome[#outcome + 1] = 'lost ' .. id .. ' kept'
    elseif held[id] then
      members_of(id, firsts[i], lasts[i], members)
    elseif rebuilding and its_token then
      outcome[#outcome + 1] = 'lost ' .. id .. ' kept'
    else
      outcome[#outcome + 1] = 'lost ' .. id
      lost[#lost + 1] = id
    end
  end
  -- A claim that is left over is useless: a later loss of main must not restore it.
  for _, id in ipairs(lost) do
    if string.find(id, '*', 1, true) then drop(id) end  -- foreign clients may have left some of its members
  end
  call_in_chunks(lost, 'HDEL', state)
  call_in_chunks(lost, 'ZREM', ttls)
  -- After a failover one may wait here for what another server has granted it.
  call_in_chunks(lost, 'ZREM', waiting)
  call_in_chunks(lost, 'ZREM', waiting_heartbeat)
  for i = holders + 1, #ids do
    local id = ids[i]
    if queued[id] then
      waiting_ids[#waiting_ids + 1] = id
      if filed and not filed[id] then outcome[#outcome + 1] = 'gone ' .. id end
    else
      left[#left + 1] = id
    end
  end
  local granted, claims = present(main, left, 1, #left), texts_of(left)
  for _, id in ipairs(left) do
    local claim = parse_claim(claims[id])
    if granted[id] and claim and claim.granted ~= '0' then
      members_of(id, nil, nil, members)
      outcome[#outcome + 1] = 'granted ' .. id .. ' ' .. whole(claim.number) .. ' ' .. whole(claim.token)
    elseif granted[id] then
      outcome[#outcome + 1] = complete(id, claim, value, interval)  -- perhaps nothing
    elseif rebuilding and claim then
      if claim.granted == '0' then waiting_ids[#waiting_ids + 1] = id end  -- its place is put back
    else
      outcome[#outcome + 1] = 'gone ' .. id
    end
  end
  renew(main, members, deadline)
  renew(waiting_heartbeat, waiting_ids, deadline)
  if filed and recount() then redis.call('HDEL', state, '.orphans') end

  clamp(main, longest)
  clamp(waiting_heartbeat, longest)
  -- Only after all of these were read: if one is damaged, this is a sign of life of nobody, not even of waiters. Or
  -- holders that could not be released would be put back for another interval when it is repaired.
  if holders + waiters > 0 then redis.call('HSET', state, '.interval', longest, '.beat', now_text) end
  drop_silent()
  if not rebuilding then mend_some() end
  mend_tickets()
  if facts[5] then refuse_waiters(facts[6]) else serve(value, interval) end
  for _, message in ipairs(messages) do outcome[#outcome + 1] = message end
  -- Other clients may have set a shorter life.
  for _, key in ipairs({main, max, waiting, waiting_heartbeat}) do outlive(key, interval) end
  local last = tonumber(redis.call('ZREVRANGE', ttls, 0, 0, 'WITHSCORES')[2])
  if last then outlive(ttls, last - now + interval) end
  if holders + waiters > 0 then keep(interval) end
  table.insert(outcome, 1, redis.call('EXISTS', waiting) == 1 and next_end() or -1)
  return outcome
end

return renew_names(renew_name, 7, KEYS[2])
