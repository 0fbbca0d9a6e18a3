-- path_beat.lua: the signs of life of a whole process in its paths, and what became of them.
-- KEYS  8 for each Tiers object (path_common.lua), one after the other
-- ARGV  and replies are those of beat.lua, so that one keeper serves both:
--       1 now (s; empty: the server's clock)   2 the caller's seat, or empty
--       then for each object: heartbeat_max_interval (s), a pattern that is of no use here,
--       how many holders, how many waiters, the holders' ids, the waiters' ids
-- Returns for each object {ms until somebody's time is up, 0 if something is unfinished, or -1,
-- and "lost id", "gone id", "granted id number token", "failed why", "full" ...}
-- Mirrors a renewal of each, then PathLedger.expire.
-- include path_rules.lua

-- Those of the ids ARGV[first] .. ARGV[last] that are in a sorted set, as a set.
local function present(key, first, last)
  local found = {}
  for from = first, last, CHUNK do
    local to = math.min(from + CHUNK - 1, last)
    local scores = redis.call('ZMSCORE', key, unpack(ARGV, from, to))
    for i = 1, to - from + 1 do
      if scores[i] then found[ARGV[from + i - 1]] = tonumber(scores[i]) end
    end
  end
  return found
end

local function renew(key, ids, deadline)  -- all of them are known to be there
  for from = 1, #ids, CHUNK / 2 do
    local arguments = {}
    for i = from, math.min(from + CHUNK / 2 - 1, #ids) do
      arguments[#arguments + 1] = deadline
      arguments[#arguments + 1] = ids[i]
    end
    redis.call('ZADD', key, unpack(arguments))
  end
end

-- After the clock stepped back, the dead have deadlines that no living one could have.
local function clamp(key)
  local latest = tonumber(redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')[2])
  if not latest or latest <= now + 1.25 * longest then return end
  local beyond = '(' .. seconds(now + 1.25 * longest)
  renew(key, redis.call('ZRANGEBYSCORE', key, beyond, '+inf', 'LIMIT', 0, AT_ONCE), seconds(now + longest))
end

-- For one object, whose keys begin at KEYS[first] and arguments at ARGV[at].
local function beat(first, at)
  open(first, ARGV[1])
  caller = ARGV[2]
  local interval, held, waited = tonumber(ARGV[at]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  local first_holder, first_waiter = at + 4, at + 4 + held
  local last = first_waiter + waited - 1

  -- Renewed before the silent are buried: who is late, but was not yet given up, lives.
  -- A ttl is not extended by that.
  local holding, waiting = present(holders, first_holder, last), present(waiters, first_waiter, last)
  local over = {}
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', ttls, '-inf', now_text, 'LIMIT', 0, AT_ONCE)) do
    over[id] = true
  end
  local living, in_line, outcome = {}, {}, {}
  for i = first_holder, first_waiter - 1 do
    local id = ARGV[i]
    if holding[id] and not over[id] then living[#living + 1] = id else outcome[#outcome + 1] = 'lost ' .. id end
  end
  for i = first_waiter, last do
    local id = ARGV[i]
    local claim = holding[id] and not over[id] and read_claim(id)
    if waiting[id] then
      in_line[#in_line + 1] = id
    elseif claim then
      living[#living + 1] = id
      outcome[#outcome + 1] = 'granted ' .. id .. ' ' .. whole(claim.number) .. ' ' .. whole(claim.token)
    else
      outcome[#outcome + 1] = 'gone ' .. id
    end
  end
  renew(holders, living, seconds(now + interval))
  renew(waiters, in_line, seconds(now + interval))
  if known['.shape'] then
    if held + waited > 0 then outlive(math.max(longest, interval)) end
    clamp(holders)
    clamp(waiters)
    expire()
    save()
  end
  for _, message in ipairs(told) do outcome[#outcome + 1] = message end
  local due = next_end()
  if due ~= 0 and redis.call('EXISTS', waiters) == 0 then due = -1 end
  table.insert(outcome, 1, due)
  return outcome
end

local full = begin_though_full(KEYS[4])
local replies = {}
local at = 3
for first = 1, #KEYS, 8 do
  local reply, why = guarded(beat, first, at)
  replies[#replies + 1] = reply or {-1, 'failed ' .. why}
  at = at + 4 + ARGV[at + 2] + ARGV[at + 3]
end
if full then table.insert(replies[1], 'full') end
return replies
