-- control.lua: change a limit for everybody, or end somebody's acquisition.
-- KEYS  the limit (rules/state.lua)
-- ARGV  1 now (s; empty: the server's clock)
--       2 where names are noted, or empty
--       3 the loop client that calls, or empty
--       4 of a semaphore the pattern of foreign notification lists, else empty
--       5 heartbeat_max_interval (s)
--       6 the tiers' names, as the caller was made   7 and their values; "?" if these don't matter
--       8 the verb, and 9... its arguments: see below
-- Returns {"done", ...} as the verb says, {"conflict", tier or -1, its value, held, waiting} or
-- {"closed", the reason if there is one}, followed by messages for the caller, "unfinished" among
-- them if calls of heartbeat.lua have to serve the rest.
-- Mirrors PathLedger.expire, then PathLedger.control.
-- include rules/state.lua
local verbs = {}
local node_name, argument = ARGV[10], ARGV[11]
local tier = tonumber(ARGV[9]) and tonumber(ARGV[9]) + 1

-- Refuse those of some waiters that need more than there is now, the oldest first.
local function refuse(ids)
  local unfits, unread = {}, {}
  for _, id in ipairs(ids) do note_unread(id, unread) end
  fetch(unread)
  for _, id in ipairs(ids) do
    local claim = needs_of(id) and read_claim(id)
    if claim then unfits[#unfits + 1] = {claim.ticket, id, claim} end
  end
  table.sort(unfits, function(one, other) return one[1] < other[1] end)
  for _, each in ipairs(unfits) do
    local id, claim = each[2], each[3]
    local unfit_tier, value = unfit(nodes_of(claim.path), needs_of(id))
    if unfit_tier then
      queue.leave(id)
      notify(id, claim.owner, 'refused ' .. id .. ' ' .. whole(value) .. ' ' .. whole(unfit_tier))
    end
  end
end

-- resize: 9 the tier's number   10 its node, or empty for the tier itself   11 the new value; 0: no
--   limit; or a rate
--         12 for how long (s) it is remembered when nobody is there
--         13 empty to change it, or where to continue: "*" and a cursor with waiters that can never
--         fit now, or the node after which to continue looking for waiters that fit now
-- Returns {"done", where to continue, or "" at the end} or {"adaptive"} if the value adapts.
function verbs.resize()
  local rate, value, after = buckets.read(argument), tonumber(argument), ARGV[13]
  if adapting.rules[tier] then return {'adaptive'} end
  local node = node_name ~= '' and read_node(node_name)
  if after ~= '' then
    -- It goes on.
  elseif node and rate then
    buckets.refill(node)
    node.own_rate = rate
    buckets.change_rate(node, rate)
    buckets.charge(node, 0)
  elseif node then
    node.value = value
    change(node)
  elseif rate then
    buckets.resize_tier(tier, rate)
  else
    values[tier] = value
    agreement.accept(tier, argument)
  end
  local refuses = after == '' or after:sub(1, 1) == '*'
  if refuses and turns.waiting == 0 then
    after = ''  -- those that would be left to refuse have left
  elseif refuses then
    local from = after == '' and '0' or after:sub(2)
    local ids = {}
    if from == '0' and turns.waiting <= PAGE then
      ids, after = call('ZRANGE', flush(keys.waiters), 0, -1), ''
    else
      local found = call('ZSCAN', flush(keys.waiters), from, 'COUNT', PAGE)
      for i = 1, #found[2], 2 do ids[#ids + 1] = found[2][i] end
      after = found[1] ~= '0' and '*' .. found[1] or ''
    end
    refuse(ids)
  end
  if after:sub(1, 1) == '*' then
    -- There is more to refuse first.
  elseif node or is_line then
    queue.look_at(node or read_node('0:'))
  else
    -- From node to node, whatever is parked at each: this many of them in one call.
    after = pauses.look_at_some(whole(tier - 1), after, pauses.room_for_work()) or ''
  end
  queue.serve()
  outlive(tonumber(ARGV[12]))
  return {'done', after}
end

-- freeze, thaw: 9 the tier's number   10 its node, or empty for all of the tier   11 the value to
--         freeze it at; empty: the current one
--       12 for how long (s) it is remembered when nobody is there
--       13 empty, or where to continue
-- Returns {"done", value, where to continue, or "" at the end}, {"fixed"} if it doesn't adapt, or
-- {"outside", min, max}.
local function steer(is_freeze)
  local value, rules = tonumber(argument), adapting.rules[tier]
  if not rules then return {'fixed'} end
  local least, most = rules:match('^(%d+) (%d+)')
  if value and (value < least + 0 or value > most + 0) then
    return {'outside', tonumber(least), tonumber(most)}
  end
  local function steer_one(node)
    local it = adapting.read(node)
    if is_freeze then adapting.freeze_it(it, now_us, value) else adapting.thaw_it(it, now_us) end
    adapting.write(node, it)
    node.value = it.limit
    change(node)
    queue.look_at(node)
    return it.limit
  end
  local from, current = ARGV[13] ~= '' and ARGV[13] or '0', value or values[tier]
  if node_name ~= '' then
    current, from = steer_one(read_node(node_name)), '0'
  else
    local text = whole(tier - 1)
    local frozen = string.gsub(known['.frozen'] or '', text .. '=%S+ ?', '')
    if is_freeze then frozen = frozen .. text .. '=' .. (value and whole(value) or '-') .. ' ' end
    put('.frozen', frozen ~= '' and frozen)
    adapting.frozen[tier] = is_freeze and (value or values[tier]) or nil
    local found = call('HSCAN', keys.state, from, 'MATCH', '[%0-9]*', 'COUNT', AT_ONCE)
    from = found[1]
    for i = 1, #found[2], 2 do
      local name = found[2][i]:match('^%%?(' .. text .. ':%S*)$')
      if name then current = steer_one(read_node(name)) end
    end
  end
  queue.serve()
  outlive(tonumber(ARGV[12]))
  return {'done', current, from ~= '0' and from or ''}
end

function verbs.freeze() return steer(true) end
function verbs.thaw() return steer(false) end

-- pause: 9 the node, or the number of a tier for all of it   10 for how long (s); if there are
--         several, the one that ends last counts
-- Returns {"done"}. Waiters are told to check, and learn when to come back.
function verbs.pause()
  longest = math.max(longest, tonumber(ARGV[5]))
  local length = tonumber(ARGV[10])
  if length > 0 then pauses.begin(ARGV[9], math.ceil(length * 1000000)) end
  return {'done'}
end

-- refill: 9 the node with a rate whose bucket is filled, debt included. Returns {"done"}.
function verbs.refill()
  local node = known['.shape'] and read_node(ARGV[9])
  if node and node.rate then
    buckets.refill(node)
    node.level = node.rate.full
    change(node)
    touched[node.name] = node
    queue.serve()
  end
  return {'done'}
end

-- settle: 9 acquisition id   10 "tier=units,...", what it has really taken of rates
-- Returns {"done", 1, or 0 if the id is unknown, or no longer known}.
function verbs.settle()
  local found = known['.shape'] and buckets.correct(ARGV[9], node_name)
  queue.serve()
  return {'done', found and 1 or 0}
end

-- kick: 9 acquisition id. Its process gets the message "kicked"; a foreign client finds out by its
-- ping. Waiters are left alone.
-- Returns {"done", how many slots it had; 0 if it held none}.
function verbs.kick()
  local released = kick(ARGV[9])
  queue.serve()
  return {'done', released}
end

-- close: 9 the reason (only if there is one). Refuses all waiters and newcomers, until it is
-- reopened. Returns {"done"}.
function verbs.close()
  if not known['.shape'] and ARGV[7] ~= '?' then agreement.declare(ARGV[6], ARGV[7]) end
  put('.closed', '1')
  put('.reason', ARGV[9] or false)
  keep_closed()
  expire()  -- which refuses the waiters now
  return {'done'}
end

-- reopen: undoes close and pause; a limit that is open is left alone. Returns {"done", 1 if it was
-- closed}.
function verbs.reopen()
  local was_closed = known['.closed'] and 1 or 0
  put('.reason', false)
  if known['.closed'] or pauses.ends then
    -- From now on it is kept for as long as if it had not been closed or paused.
    local until_us = tonumber(get('.until') or nil)
    put('.closed', false)
    put('.until', false)
    if until_us then
      keep_until(math.max(until_us, now_us + 4 * math.max(longest, 15) * 1000000))
    end
  end
  if pauses.ends then
    pauses.finish(math.huge)
    queue.serve()
  end
  return {'done', was_closed}
end

-- forget: removes all that is known of a limit that nobody uses: its values, what it was resized
-- to, that it is closed.
-- Returns {"done", 1, or 0 if there was nothing, or -1 if it is in use, or a rate is not full or
-- can still be settled; then nothing has changed}.
function verbs.forget()
  save()
  local is_used = call('EXISTS', keys.holders, keys.waiters, keys.queue) > 0
  local last_key = first_key + key_count - 1
  if is_used or next(rates) and call('EXISTS', keys.cleanup, KEYS[last_key - 1],
      KEYS[last_key]) > 0 then
    return {'done', -1}
  end
  local found = call('EXISTS', unpack(KEYS))
  unlink(unpack(KEYS))
  if ARGV[2] ~= '' then redis.pcall('ZREM', ARGV[2], KEYS[1]) end
  open(1, #KEYS, ARGV[1])  -- so that nothing of it is written at the end
  return {'done', math.min(found, 1)}
end

-- What needs a limit that is open, and that the caller agrees with.
local CHANGES = {resize = true, freeze = true, thaw = true, pause = true}

local function run()
  local verb = ARGV[8]
  open(1, #KEYS, ARGV[1])
  caller, pattern = ARGV[3], ARGV[4]
  begin_though_full()  -- a full server does these too
  if CHANGES[verb] then
    if known['.closed'] then return closed_reply() end
    local clash = ARGV[7] ~= '?' and agreement.declare(ARGV[6], ARGV[7])
    if clash then
      return {'conflict', clash - 1, agreement.conflicting(clash), counts.held_before,
        turns.waiting}
    end
    outlive(math.max(longest, tonumber(ARGV[5])))
  end
  if known['.shape'] or is_line then expire() end
  return answer(verbs[verb]())
end
return guarded(run)
