-- path_rules.lua: who is served, and when: PathLedger (slotwise/_ledger/paths.py, where the
-- rules stand) in Lua. Not a script: scripts.py puts it, behind path_common.lua, in place of the
-- line "-- include path_rules.lua".
-- include path_common.lua
local PATIENCE = 100
local LOOKS = 64
local is_finished = false  -- whether it is known that no node is to be looked at

local function has_slot_for(node, ticket)
  if blocked_until > now then return false end
  local value = value_of(node)
  if value == 0 then return true end
  local kept = node.kept and node.kept ~= ticket
  return node.held + (kept and 1 or 0) < value
end

local function lacks(path_nodes, ticket)
  for at, node in ipairs(path_nodes) do
    if not has_slot_for(node, ticket) then return node, at end
  end
end

-- ----------------------------------------------------------------- groups, and where they are

local function first_of(key, name)  -- of those whose record begins with a name
  local record = redis.call('ZRANGEBYLEX', key, '[' .. name .. ' ', '(' .. name .. '!', 'LIMIT', 0, 1)[1]
  if record then
    local ticket, rest = string.match(record, '^%S+ (%d+) (%S+)$')
    return tonumber(ticket), rest
  end
end

local function park(path, ticket, name)
  zadd(parked, 0, name .. ' ' .. padded(ticket) .. ' ' .. path)
  put('>' .. path, name .. ' ' .. whole(ticket))
  fresh[parked] = true
end

local function parked_at(path)
  local record = get('>' .. path)
  if record then
    local name, ticket = string.match(record, '^(%S+) (%S+)$')
    return name, tonumber(ticket)
  end
end

local function unpark(path, ticket, name)
  redis.call('ZREM', parked, name .. ' ' .. padded(ticket) .. ' ' .. path)
end

local function look_at(node)
  local ticket = first_of(parked, node.name)
  if ticket then
    redis.call('ZADD', unfinished, 'LT', ticket, node.name)
    fresh[unfinished], is_finished = true, false
  end
end

local function is_unfinished()  -- 1 or 0, for replies
  return not is_finished and redis.call('EXISTS', unfinished) or 0
end

local function unfinished_on(path_nodes)
  if is_finished then return nil end
  for _, node in ipairs(path_nodes) do
    if redis.call('ZSCORE', unfinished, node.name) then return node end
  end
end

-- ------------------------------------------------------------------------ holding, waiting

local function take_number(widest)  -- before it counts the new holder
  if widest.top > widest.held then
    local free = redis.call('ZRANGEBYLEX', numbers, '[' .. widest.name .. ' ', '(' .. widest.name .. '!',
                            'LIMIT', 0, 1)[1]
    if free then
      redis.call('ZREM', numbers, free)
      return tonumber(string.match(free, '%d+$'))
    end
  end
  widest.top = widest.top + 1
  return widest.top
end

-- Turn a claim, whose nodes all have a slot for it, into a holder until `deadline`.
local function hold(id, claim, path_nodes, deadline)
  local widest = path_nodes[#path_nodes]
  claim.number = take_number(widest)
  if widest.held == 0 then fresh[holders] = true end
  for _, node in ipairs(path_nodes) do
    node.held = node.held + 1
    change(node)
  end
  token = math.max(token + 1, now_us)
  claim.token, claim.granted = token, now_text
  put('.token', whole(token))
  write_claim(id, claim)
  zadd(holders, deadline, id)
  if claim.ttl ~= '-' then
    zadd(ttls, seconds(now + tonumber(claim.ttl)), id)
    fresh[ttls] = true
    if not known['.timed'] then put('.timed', '1') end
  end
end

-- End a hold, if there is one; grants nothing.
local function give(id)
  if redis.call('ZREM', holders, id) == 0 then return 0 end
  local claim = read_claim(id)
  if not claim then return 0 end
  put(id, false)
  if claim.ttl ~= '-' then redis.call('ZREM', ttls, id) end
  local path_nodes = nodes_of(claim.path)
  for _, node in ipairs(path_nodes) do
    node.held = math.max(node.held - 1, 0)  -- should the server have lost one key and not the other
    change(node)
    if node.waiting > 0 then look_at(node) end
  end
  local widest = path_nodes[#path_nodes]
  if widest.held > 0 then
    redis.call('ZADD', numbers, 0, widest.name .. ' ' .. padded(claim.number))
    fresh[numbers] = true
  else
    if widest.top > 1 then
      redis.call('ZREMRANGEBYLEX', numbers, '[' .. widest.name .. ' ', '(' .. widest.name .. '!')
    end
    widest.top = 0
  end
  return 1
end

-- Stand in line. The group of a path is parked when its first one comes.
local function wait(id, claim, path_nodes, deadline)
  write_claim(id, claim)
  zadd(line, 0, claim.path .. ' ' .. padded(claim.ticket) .. ' ' .. id)
  zadd(waiters, deadline, id)
  if path_nodes[#path_nodes].waiting == 0 then fresh[line], fresh[waiters] = true, true end
  for _, node in ipairs(path_nodes) do
    node.waiting = node.waiting + 1
    change(node)
  end
  if not parked_at(claim.path) then
    park(claim.path, claim.ticket, (lacks(path_nodes) or unfinished_on(path_nodes)).name)
  end
end

-- End a wait. The next one of the group becomes its head, and its ticket is returned; it is
-- not parked yet.
local function take_out(id, path, ticket, path_nodes)
  redis.call('ZREM', line, path .. ' ' .. padded(ticket) .. ' ' .. id)
  redis.call('ZREM', waiters, id)
  for _, node in ipairs(path_nodes) do
    node.waiting = math.max(node.waiting - 1, 0)
    change(node)
  end
  -- The counts spare a search when nobody can be there.
  for _, node in ipairs(path_nodes) do
    if node.waiting == 0 then return nil end
  end
  return first_of(line, path)
end

local function drop_keeps(path_nodes, from, ticket)
  for at = from, #path_nodes do
    local node = path_nodes[at]
    if node.kept == ticket then
      node.kept = nil
      change(node)
      look_at(node)
    end
  end
end

-- Leave the line, if it stands there; grants nothing. Also the node where its group was parked.
local function leave(id)
  if not redis.call('ZSCORE', waiters, id) then return 0 end
  local claim = read_claim(id)
  if not claim then return redis.call('ZREM', waiters, id) end
  put(id, false)
  local path, ticket, path_nodes = claim.path, claim.ticket, nodes_of(claim.path)
  local name, head = parked_at(path)
  if head ~= ticket then
    take_out(id, path, ticket, path_nodes)
    return 1, name
  end
  drop_keeps(path_nodes, 1, ticket)
  unpark(path, ticket, name)
  local next_head = take_out(id, path, ticket, path_nodes)
  if next_head then
    park(path, next_head, name)  -- it lacks the same node
  else
    put('>' .. path, false)
  end
  return 1, name
end

-- ------------------------------------------------------------------------------- serving

-- Keep a slot of each narrower node with a limit, up to the first that keeps one for another.
local function keep(path_nodes, before, ticket)
  for at = 1, before - 1 do
    local node = path_nodes[at]
    if value_of(node) ~= 0 then
      if node.kept and node.kept ~= ticket then return end
      node.kept = ticket
      change(node)
    end
  end
end

-- Grant the head of a group that is parked here, or park it where it lacks something.
local function examine(path, ticket, here)
  local path_nodes = nodes_of(path)
  unpark(path, ticket, here.name)
  local lacking, at = lacks(path_nodes, ticket)
  if lacking then
    drop_keeps(path_nodes, at, ticket)
    if last_ticket - ticket > PATIENCE then keep(path_nodes, at, ticket) end
    park(path, ticket, lacking.name)
    return
  end
  for _, node in ipairs(path_nodes) do
    if node.kept == ticket then node.kept = nil end  -- it is taken now
  end
  local _, id = first_of(line, path)
  local claim, deadline = read_claim(id or ''), redis.call('ZSCORE', waiters, id or '')
  if claim and deadline then
    -- A grant is no sign of life: one that died in line blocks the others for no longer
    -- than if it had stayed there.
    hold(id, claim, path_nodes, deadline)
    tell(id, claim.owner, 'granted', id, whole(claim.number), whole(claim.token))
  end
  local next_head = take_out(id or '', path, ticket, path_nodes)
  if next_head then
    park(path, next_head, (lacks(path_nodes, next_head) or here).name)
  else
    put('>' .. path, false)
  end
end

local function settle()
  if known['.closed'] then  -- nobody is granted anything
    redis.call('DEL', unfinished)
    is_finished = true
    return
  end
  local looks = LOOKS
  while looks > 0 and not is_finished do
    local work = redis.call('ZRANGE', unfinished, 0, 0, 'WITHSCORES')
    if not work[1] then
      is_finished = true
      return
    end
    local here = read_node(work[1])
    local ticket, path
    if has_slot_for(here) then ticket, path = first_of(parked, here.name) end
    redis.call('ZREM', unfinished, here.name)
    if ticket then
      if ticket == tonumber(work[2]) then
        looks = looks - 1
        examine(path, ticket, here)
      end
      look_at(here)
    end
  end
end

-- End all whose time is up; only then, when no waiter is left whose own time is up, is
-- anything granted.
local function expire()
  is_finished = false
  if known['.timed'] then
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', ttls, '-inf', now_text, 'LIMIT', 0, AT_ONCE)) do
      if give(id) == 0 then redis.call('ZREM', ttls, id) end
    end
  end
  local silent = redis.call('ZRANGEBYSCORE', holders, '-inf', now_text, 'LIMIT', 0, AT_ONCE)
  for _, id in ipairs(silent) do give(id) end
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', waiters, '-inf', now_text, 'LIMIT', 0, AT_ONCE)) do
    leave(id)
    silent[#silent + 1] = id
  end
  if #silent > 0 then
    -- Whatever else a dead process has here goes with that, or each would keep its turn until its
    -- own time is up.
    for _, id in ipairs(of_dead_processes(silent, redis.call('ZRANGE', waiters, 0, LOOKED_AT - 1))) do leave(id) end
    for _, id in ipairs(of_dead_processes(silent, redis.call('ZRANGE', holders, 0, LOOKED_AT - 1))) do give(id) end
  end
  if known['.closed'] then
    for _, id in ipairs(redis.call('ZRANGE', waiters, 0, AT_ONCE - 1)) do
      local claim = read_claim(id)
      leave(id)
      tell(id, claim and claim.owner, 'closed', id, known['.reason'] or nil)
    end
  end
  settle()
end

-- In how many ms somebody's time is up, 0 if something is unfinished, -1 if there is nothing to
-- come back for. Those who wait come back then.
local function next_end()
  if is_unfinished() == 1 then return 0 end
  local soonest = blocked_until > now and blocked_until or nil
  for _, key in ipairs({holders, ttls, waiters}) do
    local score = tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2])
    if score and (not soonest or score < soonest) then soonest = score end
  end
  if not soonest then return -1 end
  return math.max(math.ceil((soonest - now) * 1000), 0)
end

-- --------------------------------------------------------------------------- after a loss

-- The members of a sorted set with their scores, and whether it is there at all.
local function scores_in(key)
  local scores, flat = {}, redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  for i = 1, #flat, 2 do scores[flat[i]] = flat[i + 1] end
  return scores, #flat > 0
end

-- Read all of state, and begin to count anew: the ids of the claims.
local function forget_counts()
  local fields, ids = redis.call('HGETALL', state), {}
  for i = 1, #fields, 2 do known[fields[i]] = known[fields[i]] == nil and fields[i + 1] or known[fields[i]] end
  for i = 1, #fields, 2 do
    local field = fields[i]
    if string.match(field, '^%d') then
      local node = read_node(field)
      node.held, node.waiting, node.top, node.kept = 0, 0, 0, nil
      change(node)
    elseif string.sub(field, 1, 1) == '>' then
      put(field, false)
    elseif string.sub(field, 1, 1) ~= '.' then
      ids[#ids + 1] = field
    end
  end
  return ids
end

-- Make all keys anew of the claims, and of the signs of life that are left. Whoever had one only
-- in a key that was lost gets a full interval.
function rebuild()
  local held_until, holders_there = scores_in(holders)
  local alive_until, waiters_there = scores_in(waiters)
  local taken, heads = {}, {}
  redis.call('DEL', holders, waiters, ttls, line, parked, unfinished, numbers)
  for _, id in ipairs(forget_counts()) do
    local claim = read_claim(id)
    local granted = claim and claim.granted ~= '0'
    local scores, there = alive_until, waiters_there
    if granted then scores, there = held_until, holders_there end
    if not claim or (there and not scores[id]) then
      put(id, false)
    else
      local path_nodes = nodes_of(claim.path)
      redis.call('ZADD', granted and holders or waiters, scores[id] or seconds(now + claim.interval), id)
      for _, node in ipairs(path_nodes) do
        if granted then node.held = node.held + 1 else node.waiting = node.waiting + 1 end
        change(node)
      end
      if granted then
        local widest = path_nodes[#path_nodes]
        widest.top = math.max(widest.top, claim.number)
        taken[widest.name] = taken[widest.name] or {}
        taken[widest.name][claim.number] = true
        if claim.ttl ~= '-' then redis.call('ZADD', ttls, seconds(claim.granted + claim.ttl), id) end
      else
        redis.call('ZADD', line, 0, claim.path .. ' ' .. padded(claim.ticket) .. ' ' .. id)
        heads[claim.path] = math.min(heads[claim.path] or claim.ticket, claim.ticket)
      end
    end
  end
  for name, those in pairs(taken) do
    for number = 1, read_node(name).top do
      if not those[number] then redis.call('ZADD', numbers, 0, name .. ' ' .. padded(number)) end
    end
  end
  for path, ticket in pairs(heads) do
    local path_nodes = nodes_of(path)
    local lacking = lacks(path_nodes, ticket)
    park(path, ticket, (lacking or path_nodes[1]).name)
    if not lacking then look_at(path_nodes[1]) end
  end
  for key = first_key + 1, first_key + 7 do fresh[KEYS[key]] = true end
end

-- ----------------------------------------------------------------------- what it was made with

-- The i-th part of a text that has "|" between its parts.
local function part(text, i)
  for each in string.gmatch(text, '[^|]+') do
    i = i - 1
    if i == 0 then return each end
  end
end

-- The tier whose value is in the way of an object that was made with these, or nil.
local function clashing(own_values)
  local i = 0
  for value in string.gmatch(own_values, '%d+') do
    i = i + 1
    if not string.find(part(get('.accepted'), i), ',' .. value .. ',', 1, true) then return i end
  end
end

-- Agree on the tiers with an object that was made with these; nil, or the number of the tier
-- whose value is in the way, or 0 if the tiers are others.
local function declare(shape, own_values)
  local clash = 0
  if known['.shape'] == shape then
    clash = known['.declared'] ~= own_values and clashing(own_values)
    if not clash then return nil end
  end
  if known['.shape'] and redis.call('EXISTS', holders, waiters) > 0 then return clash end
  -- Nobody is there: what was agreed on before, and changed since, is forgotten.
  redis.call('DEL', ttls, line, parked, unfinished, numbers)
  for _, field in ipairs(redis.call('HKEYS', state)) do
    if string.sub(field, 1, 1) ~= '.' then put(field, false) end
  end
  read_values(own_values)
  put('.shape', shape)
  put('.declared', own_values)
  put('.accepted', (string.gsub(own_values, '(%d+),?', '|,%1,')))
  put('.values', own_values)
end

-- The last thing that a script does: write, and reply. Behind the reply stand the messages for the
-- caller, "unfinished" among them if a call of path_beat.lua has to serve the others.
local function answer(reply)
  save()
  for _, message in ipairs(told) do reply[#reply + 1] = message end
  if is_unfinished() == 1 then reply[#reply + 1] = 'unfinished' end
  return reply
end
