-- rules/paths.lua: the queues of tiers: who is served, and when. It is PathLedger
-- (slotwise/_ledger/paths.py, which has the rules) in Lua. Not a script.
made_when_needed(paths, function()
local LOOKS = 128    -- how many heads one call examines, as in the ledger
-- how many nodes it visits; one where nothing is free costs less than a head, but not nothing
local VISITS = 128
-- how many nodes are compared by the turns of their heads if all have one tag
turns.MOST_AT_ONE_TAG = 80
local is_finished    -- whether it is known that no node has to be looked at
-- While it serves: the nodes to be looked at first, by turn and name, the next one last.
local work

-- How many groups are parked, and how many of the keys there are that none is needed for.
local function count_keys()
  return call('ZCARD', keys.parked) * 8 + call('EXISTS', keys.unfinished, keys.refills,
    keys.passed, keys.shares)
end

function paths.open()
  work, is_finished = nil, false
  dues.told, dues.moved = {}, {}
  turns.waiting, turns.passing, turns.is_expiring = counts.waits, {}, false
  turns.read(known['.shape'])
  if counts.held_before ~= counts.held or call('ZCARD', keys.waiters) ~= counts.waits
      or call('ZCARD', keys.queue) ~= counts.waits or count_keys() ~= number_in('.keys')
      or call('ZCARD', keys.ttls) ~= counts.timed then
    damaged('a key is missing, or has other contents')
  end
  -- As many other members would be noticed by nobody: their groups would only never be found.
  local last = turns.waiting > 0 and call('ZREVRANGE', keys.parked, 0, 0)[1]
  if last and not last:find('^%d+:') then damaged('something else is parked') end
end

function paths.save()
  turns.flush()
  if turns.by then fair.save() end
  if next(rates) then buckets.tell_due() end
  counts.waits = turns.waiting
  local how_many = known['.shape'] and (turns.waiting > 0 or known['.keys']) and count_keys() or 0
  if number_in('.keys') ~= how_many then put('.keys', how_many > 0 and whole(how_many)) end
end

-- ----------------------------------------------------------------- groups, and where they are

-- The first head that is parked at a node stands in node.first once it was read, false if there is
-- none. Each is that of turns.head. At some nodes of fair order it is found by its key, and has
-- also the turn and the record by which that is (rules/fair.lua).
local function parked_record(name, head, is_by_key)
  if is_by_key then name = name .. '!' .. fair.key_of(head[2]) end
  return name .. ' ' .. head[4] .. ' ' .. head[2] .. ' ' .. head[3]
end

-- The first head that is parked at a node, or nil.
local function first_parked(node)
  if node.is_by_key then return fair.first(node) end
  if node.first == nil then
    local record = first_of(flush(keys.parked), node.name)
    local text, path, id = string.match(record or '', '^%S+ (%S+) (%S+) (%S+)$')
    node.first = text and head_to_serve(text, path, id) or false
  end
  return node.first or nil
end

-- Whether a head that comes before another one is parked at a node, and there is too little room
-- for it; only if somebody waits who needs several slots of a node. What is kept for a head is not
-- blocked for it.
local function is_blocked(node, head)
  if node.waiting == 0 or node.kept == head[1] then return false end
  local first = first_parked(node)
  if not first or not turns.comes_before(first, head) then return false end
  return not has_room(node, need_of(node, needs_of(first[3])), first[1])
end

-- The first node without room for a head, or that another one blocks, and which it is. `roomy` is
-- known to have room.
local function lacks(path_nodes, needs, head, roomy)
  local is_large, ticket = known['.large'], head[1]
  for at = 1, #path_nodes do
    local node = path_nodes[at]
    if node ~= roomy and not has_room(node, needs and needs[at] or 1, ticket)
        or (is_large and is_blocked(node, head)) then
      return node, at
    end
  end
end

local function park(head, name)
  local node = nodes[name] or read_node(name)
  zadd(keys.parked, '0', parked_record(name, head, node.is_by_key))
  dues.moved[name] = true
  put('>' .. head[2], name .. ' ' .. head[4] .. ' ' .. head[3])
  fresh[keys.parked] = true
  if node.is_by_key then return fair.park(head, node) end
  if node.first == false or node.first and turns.comes_before(head, node.first) then
    node.first = head
  end
end

-- The head of the group of a path, or nil, and where that is parked.
local function parked_at(path)
  local record = get('>' .. path)
  if record then
    local name, text, id = record:match('^(%S+) (%S+) (%S+)$')
    if name then return turns.head(text, path, id), name end
  end
end

local function unpark(head, name)
  local node = nodes[name] or read_node(name)
  zrem(keys.parked, parked_record(name, head, node.is_by_key))
  put('>' .. head[2], false)
  dues.moved[name] = true
  if node.is_by_key then return fair.unpark(head, node, name) end
  if node.first and node.first[1] == head[1] then node.first = nil end
end

-- Insert a node among those to be looked at, or move it if its turn is earlier than before.
local function queue_work(head, name)
  local before, ticket = work.tickets[name], turn_of(head)
  if before then
    if before <= ticket then return end
    for i = #work, 1, -1 do
      if work[i][2] == name then
        table.remove(work, i)
        break
      end
    end
  end
  work.tickets[name], work.scores[name] = ticket, score_of(head)
  local low, high = 1, #work + 1
  while low < high do
    local middle = (low + high) / 2
    middle = middle - middle % 1
    local other = work[middle]
    local turn = other[1]
    if turn > ticket or (turn == ticket and other[2] > name) then
      low = middle + 1
    else
      high = middle
    end
  end
  table.insert(work, low, {ticket, name})
end

local function look_at(node)
  local head = first_parked(node)
  if not head then
    if node.rate then
      call('ZREM', keys.refills, node.name)
      dues.told[node.name] = nil
    end
    return
  end
  is_finished = false
  if work then
    queue_work(head, node.name)
  else
    call('ZADD', keys.unfinished, 'LT', string.format('%.17g', score_of(head)), node.name)
    fresh[keys.unfinished] = true
  end
end

paths.look_at, paths.parked_at, paths.first_parked = look_at, parked_at, first_parked

-- Whether a node is among those to be looked at.
local function is_to_be_looked_at(name)
  if is_finished then return false end
  if work and (work.tickets[name] or work.taken[name] or not work.bound) then
    return work.tickets[name] ~= nil
  end
  return call('ZSCORE', keys.unfinished, name)
end

-- Park a head, and make sure that the node is looked at in time.
local function park_in_time(head, name)
  park(head, name)
  local node = nodes[name] or read_node(name)
  local is_looked_at = is_to_be_looked_at(name)
  if node.rate or is_looked_at then
    local first = first_parked(node)
    if first and first[1] == head[1] then
      if node.rate then buckets.look_in_time(node, first) end
      if is_looked_at then look_at(node) end  -- with an earlier turn
    end
  end
end

function paths.is_unfinished()
  if known['.closed'] then return math.min(turns.waiting, 1) end  -- they are refused some at a time
  if known['.looking'] or turns.is_expiring then return 1 end
  return not is_finished and call('EXISTS', keys.unfinished) or 0
end

local function unfinished_on(path_nodes, head)
  if is_finished then return nil end
  for _, node in ipairs(path_nodes) do
    local is_looked_at = call('ZSCORE', keys.unfinished, node.name) or known['.looking']
      and pauses.is_to_be_looked_at(node)
    local first = is_looked_at and first_parked(node)
    if first and turns.comes_before(first, head) then return node end
  end
end

-- Count one more, or one less, of those who wait and need several slots of a node.
local function count_large(id, change_by)
  if not id:find('*', 1, true) then return end
  local count = (tonumber(known['.large']) or 0) + change_by
  put('.large', count > 0 and whole(count))
end

local function drop_keeps(path_nodes, from, ticket)
  for at = from, #path_nodes do
    local node = path_nodes[at]
    if node.kept == ticket then
      node.kept, node.kept_slots = nil, nil
      change(node)
      look_at(node)
    end
  end
end

-- Add a waiter. The group of a path is parked when its first waiter arrives, or one whose turn is
-- before its head's. `head` and `name` are what parked_at says of its path.
local function enter(id, claim, path_nodes, deadline, newcomer, weight, head, name)
  write_claim(id, claim)
  zadd(keys.queue, '0', claim.path .. ' ' .. newcomer[4] .. ' ' .. id)
  zadd(keys.waiters, deadline, id)
  turns.waiting = turns.waiting + 1
  fresh[keys.queue], fresh[keys.waiters] = true, true
  for at = 1, #path_nodes do
    local node = path_nodes[at]
    node.waiting = node.waiting + 1
    moved[node.name] = node
  end
  count_large(id, 1)
  if turns.by then fair.enter(path_nodes[turns.by], weight) end
  if not head then
    local at = lacks(path_nodes, needs_of(id), newcomer) or unfinished_on(path_nodes, newcomer)
    park_in_time(newcomer, (at or path_nodes[1]).name)
  elseif turns.comes_before(newcomer, head) then
    drop_keeps(path_nodes, 1, head[1])
    unpark(head, name)
    park_in_time(newcomer, (lacks(path_nodes, needs_of(id), newcomer) or read_node(name)).name)
    look_at(read_node(name))
  end
end

-- End a wait; returns the next one in its group, as a head that is not parked yet. `rank` is its
-- rank as text.
local function take_out(id, path, rank, path_nodes)
  local record = path .. ' ' .. rank .. ' ' .. id
  zrem(keys.queue, record)
  zrem(keys.waiters, id)
  count_large(id, -1)
  turns.waiting = turns.waiting - 1
  local is_last = false  -- the counts save a search when nobody can be there
  for at = 1, #path_nodes do
    local node = path_nodes[at]
    node.waiting = node.waiting - 1
    if node.waiting < 0 then damaged('more leave the queue than are in it') end
    is_last = is_last or node.waiting == 0
    moved[node.name] = node
  end
  if turns.by and path_nodes[turns.by].waiting == 0 then fair.leave(path_nodes[turns.by]) end
  if turns.waiting <= 0 then turns.forget() end
  if is_last then return nil end
  if added[keys.queue] then flush(keys.queue) end
  local following = call('ZRANGEBYLEX', keys.queue, '(' .. record, '(' .. path .. '!', 'LIMIT',
    '0', '1')[1]
  if following then
    local text, next_id = following:match('^(%S+) (%S+)$', #path + 2)
    return head_to_serve(text, path, next_id)
  end
end

-- Leave the queue, if it is there; grants nothing. Also returns the node where its group was
-- parked.
function paths.leave(id)
  local claim = read_claim(id)
  if not claim or not is_waiting(claim) then return 0 end
  put(id, false)
  local path, ticket, path_nodes = claim.path, claim.ticket, nodes_of(claim.path)
  local head, name = parked_at(path)
  if not head then damaged('a path is parked nowhere') end
  if head[1] ~= ticket then
    take_out(id, path, turns.rank_text(id, ticket), path_nodes)
    flush(keys.queue)  -- or the head before it would find it there
    return 1, name
  end
  drop_keeps(path_nodes, 1, ticket)
  unpark(head, name)
  local next_head = take_out(id, path, head[4], path_nodes)
  if next_head then park_in_time(next_head, name) end
  local node = read_node(name)
  -- too little for the head that left, but not for those behind it
  if node.rate or has_room(node, 1) then look_at(node) end
  return 1, name
end

-- A newcomer, and whether it is granted at once, or which node it lacks.
function paths.arrive(id, path, path_nodes, needs, ticket)
  local newcomer, first, name = turns.head(turns.rank_text(id, ticket), path, id), parked_at(path)
  local lacking = lacks(path_nodes, needs, newcomer)
  local is_free = not lacking and not (first and turns.comes_before(first, newcomer))
    and not unfinished_on(path_nodes, newcomer)
  return {head = newcomer, first = first, at = name, is_free = is_free,
    lacking = lacking or path_nodes[1]}
end

function paths.has_waiters_on(path) return paths.parked_at(path) end
function paths.has_waiters_at(node) return node.waiting > 0 and paths.first_parked(node) end
function paths.next_ticket() return math.max(last_ticket + 1, now_us) end

function paths.wait(newcomer, id, claim, path_nodes, deadline, weight)
  enter(id, claim, path_nodes, deadline, newcomer.head, weight, newcomer.first, newcomer.at)
  -- It may be the head of its path now, and fit.
  if newcomer.head.rank and paths.is_unfinished() == 1 then
    paths.serve()
    return true
  end
end

-- ------------------------------------------------------------------------------- serving

-- Keep for a head what it needs of each narrower node with a limit, up to the first that keeps for
-- another.
local function keep(path_nodes, before, ticket, needs)
  for at = 1, before - 1 do
    local node = path_nodes[at]
    if value_of(node) ~= 0 then
      if node.kept and node.kept ~= ticket then return end
      node.kept, node.kept_slots = ticket, need_of(node, needs)
      change(node)
    end
  end
end

-- Grant the head of a group that is parked here, where there is room for it, or park it where it
-- lacks something.
-- Returns whether it was granted.
local function examine(head, here)
  local ticket, path, id = head[1], head[2], head[3]
  local path_nodes, needs = nodes_of(path), known['.large'] and needs_of(id) or nil
  unpark(head, here.name)
  local lacking, at = lacks(path_nodes, needs, head, here)
  if lacking then
    drop_keeps(path_nodes, at, ticket)
    if turns.is_overdue(ticket) then keep(path_nodes, at, ticket, needs) end
    park_in_time(head, lacking.name)
    return false
  end
  for at = 1, #path_nodes do
    local node = path_nodes[at]
    if node.kept == ticket then
      node.kept, node.kept_slots = nil, nil  -- it is taken now
      if node.rate then look_at(node) end    -- waiters there now wait for another time
    end
  end
  local claim, deadline = read_claim(id), call('ZSCORE', flush(keys.waiters), id)
  if not (claim and deadline) then damaged('a waiter has no claim, or no deadline') end
  -- A grant is not a sign of life: a waiter that died blocks the others for no longer than if it
  -- had not been granted.
  hold(id, claim, path_nodes, deadline)
  if not widest_tier then buckets.remember(id, path) end  -- it may not learn of it at once
  notify(id, claim.owner, granted_message(id, claim))
  turns.count_grant(ticket, path, needs_of(id))
  local next_head = take_out(id, path, head[4], path_nodes)
  if next_head then
    park_in_time(next_head, (lacks(path_nodes, needs_of(next_head[3]), next_head) or here).name)
  end
  return true
end

-- Read the nodes that have to be looked at first. Enough for one serve(), unless some of them
-- turn out to have no slot.
local function load_work()
  work = {tickets = {}, scores = {}, stored = {}, taken = {},
    most = math.min(LOOKS, math.ceil(left))}
  if is_finished then return end
  local found = call('ZRANGE', keys.unfinished, 0, work.most - 1, 'WITHSCORES')
  if turns.by then return fair.load_work(found) end
  local names = {}
  for i = #found - 1, 1, -2 do
    local ticket = tonumber(found[i + 1])
    note_unread(found[i], names)
    dues.moved[found[i]] = true  -- perhaps its first head left in another call
    work[#work + 1] = {ticket, found[i]}
    work.tickets[found[i]], work.stored[found[i]], work.scores[found[i]] = ticket, ticket, ticket
  end
  fetch(names)
  if #found == 2 * work.most then work.bound = tonumber(found[#found]) end
end

local function store_work()
  local taken, more = {}, {}
  for name in pairs(work.taken) do taken[#taken + 1] = name end
  for name in pairs(work.tickets) do
    local score = work.scores[name]
    if work.taken[name] or work.stored[name] ~= score then
      more[#more + 1], more[#more + 2] = string.format('%.17g', score), name
      if work.stored[name] and not work.taken[name] then taken[#taken + 1] = name end
    end
  end
  call_in_chunks(taken, 'ZREM', keys.unfinished)
  call_in_chunks(more, 'ZADD', keys.unfinished, 'LT')
  if #more > 0 then fresh[keys.unfinished] = true end
  is_finished = #work == 0 and not work.bound
  work = nil
end

-- Whether a node with this ticket, that is not among those to be looked at, would be the next of
-- them.
local function comes_first(ticket, name)
  local following = work[#work]
  return (not work.bound or ticket <= work.bound) and not (following and following[1] <= ticket)
    and not work.tickets[name]
end

-- The node to be looked at next and its ticket, or nil.
local function take_work()
  local following = work[#work]
  -- More than once if what was read had old scores: others may come before it.
  while work.bound and (not following or following[1] > work.bound) do
    store_work()
    load_work()
    following = work[#work]
  end
  if not following then return nil end
  work[#work] = nil
  work.tickets[following[2]] = nil
  if work.stored[following[2]] or work.bound then work.taken[following[2]] = true end
  return following
end

function paths.serve()
  if known['.closed'] then  -- nobody is granted anything
    unlink(keys.unfinished)
    is_finished, touched = true, {}
    return
  end
  if turns.is_expiring or left <= 0 then
    for name, node in pairs(touched) do
      touched[name] = nil
      look_at(node)
    end
    return
  end
  load_work()
  if pauses.ends then pauses.finish(now_us) end
  if known['.looking'] then pauses.go_on_looking() end
  if next(rates) or next(adapting.rules) then buckets.pass_time() end
  for name, node in pairs(touched) do
    touched[name] = nil
    look_at(node)
  end
  local looks, visits = LOOKS, VISITS
  while looks > 0 and left > 0 and visits > 0 do
    local following = take_work()
    visits = visits - 1
    if not following then break end
    local here, ticket = read_node(following[2]), following[1]
    -- where nothing is free, nobody has to look
    local is_worth_looking = here.rate or has_room(here, 1)
    while ticket do
      local head = is_worth_looking and first_parked(here)
      local is_next = head and turn_of(head) == ticket
      ticket = nil
      -- one slot is all that it needs
      local is_simple = not (here.rate or here.kept or known['.large'])
      if head and not is_simple and not has_room(here, need_of(here, needs_of(head[3])),
          head[1]) then
        if here.rate then buckets.look_in_time(here, head) end
        visits = visits - 2  -- it costs as much as a head
      elseif head then
        if is_next then
          looks = looks - 1
          left = left - (examine(head, here) and 1 or 0.5)
        end
        -- Stay here as long as no earlier head has to be looked at elsewhere.
        is_worth_looking = here.rate or has_room(here, 1)
        if is_worth_looking then
          head = first_parked(here)
          local turn = head and turn_of(head)
          if head and looks > 0 and left > 0 and comes_first(turn, here.name) then
            ticket = turn
          else
            look_at(here)
          end
        end
      end
    end
  end
  store_work()
end

-- include rules/fair.lua
end)
