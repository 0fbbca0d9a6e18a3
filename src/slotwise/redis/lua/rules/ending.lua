-- rules/ending.lua: end what is over: deadlines, dead processes, kicks; and when to come back for
-- it. Not a script.
local SUSPECTED = 200  -- how many claims are searched for those of a dead process
-- (s) how late a silence may be noticed; how long processes take to be back
local PROMPT, BACK = 0.25, 3

-- Whether the server has run for long enough that every living process listens again. The others
-- end by their own deadlines until then.
local function are_others_back()
  local info = redis.pcall('INFO', 'server')
  local uptime = type(info) == 'string' and tonumber(info:match('uptime_in_seconds:(%d+)'))
  return uptime and uptime >= BACK or false
end

local function process_of(id)
  local client = client_of(id)
  return client and (client:match('^(.*)x%d+$') or client)
end

-- Those of the first members of a set that belong to dead processes. A process is dead if it has
-- just been silent for too long and does not listen on its channel any more. A living process
-- listens, unless it has just lost its connection, so one that only forgot a claim, or left it to
-- its silence, loses no other.
local function dead_among(key, silent)
  local suspects, gone, found, is_known, is_back = {}, {}, {}, false, false
  for _, id in ipairs(silent) do suspects[process_of(id) or ''] = true end
  suspects[''] = nil
  for _, id in ipairs(next(suspects) and call('ZRANGE', flush(key), 0, SUSPECTED - 1) or {}) do
    local client, process = client_of(id), process_of(id)
    if process and suspects[process] then
      if gone[client] == nil then
        if not is_known then is_known, is_back = true, are_others_back() end
        local listeners = redis.pcall('PUBSUB', 'NUMSUB', 'slotwise:' .. client)
        gone[client] = is_back and listeners[2] == 0  -- not if this user may not ask
      end
      if gone[client] then found[#found + 1] = id end
    end
  end
  return found
end

-- End some of those whose time is up in a key, by a function that costs this much for each. Returns
-- those whose deadline has just passed: somebody comes back for each deadline while others wait.
-- Those of before passed while nobody could reach the server, and their processes may not be back
-- yet.
local function end_due(key, cost, finish)
  local just, seen = {}, {}
  local most = math.floor(left / cost)
  if most < 1 then return just end
  local found = call('ZRANGEBYSCORE', flush(key), '-inf', now_text, 'WITHSCORES', 'LIMIT', '0',
    most)
  for i = 1, #found, 2 do
    local id = id_of(found[i])  -- one of n slots is n members, and all of them go with the first
    if not seen[id] then
      seen[id], left = true, left - cost
      finish(id, found[i])
      if tonumber(found[i + 1]) >= now - PROMPT then just[#just + 1] = id end
    end
  end
  return just
end

-- End all whose time is up, some in each call; anything is granted only after that, when no waiter
-- is left whose own time is up.
local function expire()
  if pauses.ends then pauses.follow_clock() end
  if counts.timed > 0 then
    end_due(keys.ttls, 1, function(id)
      local claim = read_claim(id)
      -- One that had no ttl was kicked, and its grace is over.
      if release(id, claim and claim.ttl ~= '-' and 'd-' or 'i-') == 0 then
        call('ZREM', keys.ttls, id)
      end
    end)
  end
  local function drop(id, member)
    if release(id) == 0 then call('ZREM', flush(keys.holders), member) end
  end
  local silent = counts.held_before > 0 and end_due(keys.holders, 1, drop) or {}
  if turns.waiting > 0 then
    for _, id in ipairs(end_due(keys.waiters, 2, queue.leave)) do silent[#silent + 1] = id end
  end
  -- Whatever else a dead process has here goes with that, or each would keep its turn until its own
  -- time is up.
  if silent[1] then
    for _, id in ipairs(turns.waiting > 0 and dead_among(keys.waiters, silent) or {}) do
      if left < 2 then break end
      left = left - 2
      queue.leave(id)
    end
    for _, id in ipairs(dead_among(keys.holders, silent)) do
      if left < 1 then break end
      left = left - 1
      release(id)
    end
  end
  if known['.closed'] and turns.waiting > 0 then
    for _, id in ipairs(call('ZRANGE', flush(is_line and keys.queue or keys.waiters), 0,
        math.floor(left / 2))) do
      local claim = read_claim(id)
      queue.leave(id)
      notify(id, claim and claim.owner, 'closed ' .. id
        .. (known['.reason'] and ' ' .. known['.reason'] or ''))
    end
  end
  turns.is_expiring = false
  for _, key in ipairs(left < 2 and {keys.waiters, keys.holders, keys.ttls} or {}) do
    if call('ZCOUNT', flush(key), '-inf', now_text) > 0 then turns.is_expiring = true end
  end
  queue.serve()
end

-- In how many ms the next deadline is, 0 if something is unfinished, -1 if there is nothing to come
-- back for. Waiters come back then. -2: a client that wakes nobody holds something, so they come
-- back soon, and often.
local function next_end()
  if queue.is_unfinished() == 1 then return 0 end
  if foreign() > 0 then return -2 end
  local soonest
  for _, key in ipairs({keys.holders, keys.ttls, keys.waiters}) do
    local score = tonumber(call('ZRANGE', flush(key), 0, 0, 'WITHSCORES')[2])
    if score and (not soonest or score < soonest) then soonest = score end
  end
  if next(rates) then
    local us = tonumber(call('ZRANGE', keys.refills, 0, 0, 'WITHSCORES')[2])
    if us and (not soonest or us / 1000000 < soonest) then soonest = us / 1000000 end
  end
  for _, us in pairs(pauses.ends or {}) do
    if us > now_us then soonest = math.min(soonest or math.huge, us / 1000000) end
  end
  if not soonest then return -1 end
  return math.max(math.ceil((soonest - now) * 1000), 0)
end

-- Tell the waiters to check for themselves. One message per loop client is enough.
local function have_waiters_look()
  local told = {}
  for _, id in ipairs(call('ZRANGE', flush(keys.waiters), 0, AT_ONCE - 1)) do
    local client = client_of(id)
    if client and not told[client] then
      told[client] = true
      notify(id, nil, 'look ' .. id)
    end
  end
end

-- For how long (s) a claim keeps its slots after a kick, or nil.
local function grace_of(claim)
  return tonumber(claim.owner:match('^!%S* %S+ %d+/([%d.]+)'))
end

-- End somebody's acquisition, now or after its grace; grants nothing. Returns how many slots it
-- had.
local function kick(id)
  local claim = read_claim(id)
  local grace = claim and not is_waiting(claim) and grace_of(claim)
  if not grace then
    local released = release(id)
    if released > 0 and claim then notify(id, claim.owner, 'kicked ' .. id) end
    return released
  end
  -- It is told, and has that long to release it.
  local ends = call('ZSCORE', flush(keys.ttls), id)
  if not ends then counts.timed = counts.timed + 1 end
  if not ends or tonumber(ends) > now + grace then zadd(keys.ttls, seconds(now + grace), id) end
  fresh[keys.ttls] = true
  notify(id, claim.owner, 'kicked ' .. id .. ' later')
  local needs = needs_of(id)
  return needs and needs[widest_tier] or 1
end
