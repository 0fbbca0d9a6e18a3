-- heartbeat.lua: the heartbeats of a whole process for its limits; the reply tells which
-- acquisitions have changed state.
-- KEYS  the limits (rules/state.lua), one after the other
-- ARGV  1 now (s; empty: the server's clock)
--       2 where their names are noted, or empty
--       3 the loop client that calls, or empty
--       then for each limit: heartbeat_max_interval (s), of a semaphore the pattern of foreign
--       notification lists, else empty, how many holders, how many waiters, the holders' ids, the
--       waiters' ids
-- Returns for each limit {ms until the next deadline, 0 if something is unfinished, -1, or -2
-- (next_end in rules/ending.lua), and what each that was not simply renewed came to: "lost id",
-- "gone id", "granted id number token" ...}.
-- "lost" is a holder that no longer holds anything, "gone" a waiter that is not in the queue.
-- "full" in the first reply: the server is at its maxmemory, which refuses newcomers and no
-- heartbeats. A limit that can't be read has {-1, "failed why"}, and does not affect the others.
-- Mirrors a renewal of each, then PathLedger.expire.
-- include rules/state.lua

-- Give all members the same deadline.
local function renew(key, members, deadline)
  local words = {}
  for i, member in ipairs(members) do words[2 * i - 1], words[2 * i] = deadline, member end
  call_in_chunks(words, 'ZADD', key)
end

-- After the clock stepped back, dead members have later deadlines than any living one could have.
local function clamp(key)
  local latest = tonumber(call('ZREVRANGE', key, 0, 0, 'WITHSCORES')[2])
  if not latest or latest <= now + 1.25 * longest then return end
  local beyond = '(' .. seconds(now + 1.25 * longest)
  renew(key, call('ZRANGEBYSCORE', key, beyond, '+inf', 'LIMIT', 0, AT_ONCE),
    seconds(now + longest))
end

-- Which of ARGV[from] .. ARGV[to] are in a sorted set, as a set.
local function present(key, from, to)
  local found = {}
  for first = from, to, CHUNK do
    local last = math.min(first + CHUNK - 1, to)
    local scores = call('ZMSCORE', key, unpack(ARGV, first, last))
    for i = 1, last - first + 1 do
      if scores[i] then found[ARGV[first + i - 1]] = true end
    end
  end
  return found
end

-- A client that speaks only the document has granted a waiter of ours. One slot, or all of several:
-- complete the grant. Else back to its old place in the queue, since all are granted or none.
local function complete(id, claim, deadline)
  local is_whole = line.remove(id) == slots_of(id)
  counts.waits = counts.waits - 1
  if not is_whole then
    return line.wait({place = seconds((claim.ticket - turns.head_start_of(id)) / 1000000)}, id,
      claim, nil, deadline)
  end
  hold(id, claim, {read_node('0:')}, deadline)
  line.drop_list(id)
  return granted_message(id, claim)
end

-- For one limit, whose arguments begin at ARGV[at].
local function beat(first, count, at)
  local interval, held, waited = tonumber(ARGV[at]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  local first_waiter = at + 4 + held
  local last, unread = first_waiter + waited - 1, {}
  renewed, caller, pattern = held + waited, ARGV[3], ARGV[at + 1]
  open(first, count, ARGV[1])
  for i = at + 4, last do note_unread(ARGV[i], unread) end
  fetch(unread)
  local over = {}
  for _, id in ipairs(call('ZRANGEBYSCORE', keys.ttls, '-inf', now_text, 'LIMIT', 0, AT_ONCE)) do
    over[id] = true
  end
  -- Renewed before silent ones are dropped: one that is late, but not dropped yet, lives. That
  -- doesn't extend a ttl.
  local holding = present(keys.holders, at + 4, last)
  -- Of a semaphore, one that is only there would never be served: others may write to the queue.
  local waiting = present(is_line and keys.queue or keys.waiters, first_waiter, last)
  local living, queued, ended, outcome = {}, {}, {}, {}
  local function live(id)
    for part = 1, is_line and slots_of(id) or 1 do
      living[#living + 1] = part == 1 and id or id .. '#' .. part
    end
  end
  for i = at + 4, first_waiter - 1 do
    local id = ARGV[i]
    local claim = read_claim(id)
    if holding[id] and claim and not is_waiting(claim) and not over[id] then
      live(id)
    else
      if holding[id] and not over[id] and not is_line then damaged('a holder has no claim') end
      outcome[#outcome + 1] = 'lost ' .. id
      ended[#ended + 1] = id
      if is_line and not over[id] then release(id) end  -- another client has ended it
    end
  end
  for i = first_waiter, last do
    local id = ARGV[i]
    local claim = read_claim(id)
    if waiting[id] and claim and is_waiting(claim) then
      queued[#queued + 1] = id
    elseif holding[id] and claim and not over[id] then
      if is_waiting(claim) then
        outcome[#outcome + 1] = complete(id, claim, seconds(now + interval))
      else
        live(id)
        outcome[#outcome + 1] = granted_message(id, claim)
      end
    -- of rates alone nothing is held
    elseif not widest_tier and known['.shape'] and buckets.recall(id) then
      outcome[#outcome + 1] = 'granted ' .. id .. ' 0 ' .. whole(last_token)
    else
      if waiting[id] and not is_line then damaged('a waiter has no claim') end
      outcome[#outcome + 1] = 'gone ' .. id
      if is_line then queue.leave(id) end
    end
  end
  renew(keys.holders, living, seconds(now + interval))
  renew(keys.waiters, queued, seconds(now + interval))
  if known['.shape'] or is_line then
    longest = math.max(longest, interval)
    if held + waited > 0 then
      outlive(longest)
      note_name()  -- the notes may have been lost
    end
    -- Other clients may have set a shorter life.
    for key = first, first + (is_line and 6 or -1) do
      local left_ms = call('PTTL', KEYS[key])
      if left_ms ~= -2 and left_ms < (life_us - now_us) / 1000 - 1000 then
        expire_with_the_others(KEYS[key])
      end
    end
    clamp(keys.holders)
    clamp(keys.waiters)
    -- After a failover one may wait here for what another server has granted it.
    for _, id in ipairs(ended) do queue.leave(id) end
    expire()
    save()
  end
  for _, message in ipairs(messages) do outcome[#outcome + 1] = message end
  if why_reset then outcome[#outcome + 1] = 'reset ' .. why_reset end
  local due = next_end()
  if due ~= 0 and turns.waiting == 0 then due = -1 end
  table.insert(outcome, 1, due)
  return outcome
end

local replies, first, at, is_full = {}, 1, 4, nil
while ARGV[at] do
  local count = ARGV[at + 1] ~= '' and 7 or 14
  if is_full == nil then
    keys.holders = KEYS[2]
    is_full = begin_though_full()
  end
  local fine, outcome = pcall(guarded, beat, first, count, at)
  if not fine then
    outcome = {-1, 'failed ' .. text_of_error(outcome)}
  end
  replies[#replies + 1] = outcome
  first, at = first + count, at + 4 + ARGV[at + 2] + ARGV[at + 3]
end
if is_full then table.insert(replies[1], 'full') end
return replies
