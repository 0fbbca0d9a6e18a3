-- tiers/rules.lua: grant paths through tiers: who is served, and when. It is PathLedger
-- (slotwise/_ledger/paths.py, which has the rules) in Lua. Not a script.
-- include tiers/state.lua
-- include tiers/numbers.lua
-- include tiers/turns.lua
local LOOKS = 128    -- how many heads one serve() examines, as in the ledger
turns.AT_ONCE = 96   -- how many one call grants, however often it serves and for however many objects: some 4 ms
local AHEAD = 16  -- how many nodes with heads are read at once
local VISITS = 128  -- how many nodes it visits; one where nothing is free costs less than a head, but not nothing
turns.MOST_AT_ONE_TAG = 80  -- how many nodes are compared by the turns of their heads if all have one tag
local STEP = 100000  -- a shorter step back of the clock (us) is not worth looking for
turns.renewed = 0  -- how many deadlines this call renews: the more, the less else it does
turns.is_expiring = false  -- whether this call was not enough to end all whose time is up: it grants nothing to those who wait

-- Whether this many slots are free, without those that are kept for heads other than the one with `ticket`.
local function has_room(node, need, ticket)
  if blocked_until > now or (pauses.ends and pauses.until_of(node) > now_us) then return false end
  local kept = node.kept and node.kept ~= ticket and node.kept_slots or 0
  if node.rate then
    buckets.refill(node)
    return (need + kept) * node.rate.unit <= node.level
  end
  local value = node.value or node.own or values[node.tier] or 0  -- as value_of has it; it is asked for all the time
  return value == 0 or node.held + kept + need <= value
end

-- ----------------------------------------------------------------- groups, and where they are

-- Heads that are parked at a node, the first of them first: read some at a time, and kept up to date. Each
-- is that of turns.head, and later has, as fifth, when its silence lasts too long. At some nodes of fair order they
-- are found by their keys, and have also the turn and the record by which that is (tiers/fair.lua).
local HEADS = 32

-- How many of them to read: as many as there may be slots for, and one to see whether there are more.
local function heads_to_read(node)
  local value = value_of(node)
  return 1 + (node.rate and 1 or value == 0 and HEADS or math.max(math.min(value - node.held, HEADS), 1))
end

local function parked_record(name, head, is_by_key)
  if is_by_key then name = name .. '!' .. fair.key_of(head[2]) end
  return name .. ' ' .. head[4] .. ' ' .. head[2] .. ' ' .. head[3]
end

local function read_heads(node)
  if pending and reparked[node.name] then
    flush(keys.parked)
    reparked = {}
  end
  local most = heads_to_read(node)
  local found = redis.call('ZRANGEBYLEX', keys.parked, '[' .. node.name .. ' ', '(' .. node.name .. '!', 'LIMIT', '0', most)
  local is_by_key = node.is_by_key
  local unread, tag_at, heads = {}, #node.name + 2, {}
  local from = is_by_key and tag_at + 17 or tag_at
  node.heads, node.has_all_heads = heads, #found < most
  for i = 1, #found do
    local record = found[i]
    -- A rank has 16 digits, and with a head start those of the ticket behind it.
    local last = string.byte(record, from + 16) == 32 and from + 15 or from + 32
    local space = string.find(record, ' ', last + 2, true)
    local text, path = string.sub(record, from, last), string.sub(record, last + 2, space - 1)
    local head = head_to_serve(text, path, string.sub(record, space + 1))
    heads[i] = head
    note_unread_names(path, unread)
    if is_by_key then
      head.place, head.record = string.sub(record, tag_at, tag_at + 32), record
      note_unread('>' .. path, unread)
    end
  end
  fetch(unread)
  if not is_by_key then return end
  for _, head in ipairs(heads) do
    head.is_gone = known['>' .. head[2]] ~= node.name .. ' ' .. head[4] .. ' ' .. head[3]
  end
end

-- Put a head into its place among those that were read of a node, if it is not after all of them.
local function insert_head(node, head)
  local heads = node.heads
  local comes_before = node.is_by_key and fair.stands_before or turns.comes_before
  if not heads or not (node.has_all_heads or (heads[1] and comes_before(head, heads[#heads]))) then return end
  local at = #heads
  while at > 0 and comes_before(head, heads[at]) do at = at - 1 end
  if not (at > 0 and head.record and heads[at].record == head.record) then table.insert(heads, at + 1, head) end
end

-- The first head that is parked at a node, or nil.
local function first_parked(node)
  if node.is_by_key then return fair.first(node) end
  local heads = node.heads
  if not heads or (not heads[1] and not node.has_all_heads) then
    read_heads(node)
    heads = node.heads
  end
  return heads[1]
end

-- Whether a head that comes before another one is parked at a node, and there is too little room for it; only if
-- somebody waits who needs several slots of a node. What is kept for a head is not blocked for it.
local function is_blocked(node, head)
  if node.waiting == 0 or node.kept == head[1] then return false end
  local first = first_parked(node)
  if not first or not turns.comes_before(first, head) then return false end
  return not has_room(node, need_of(node, needs_of(first[3])), first[1])
end

-- The first node without room for a head, or that another one blocks, and which it is. `roomy` is known to have room.
local function lacks(path_nodes, needs, head, roomy)
  local is_large, ticket = known['.large'], head[1]
  for at = 1, #path_nodes do
    local node = path_nodes[at]
    if node ~= roomy and not has_room(node, needs and needs[at] or 1, ticket) or (is_large and is_blocked(node, head)) then
      return node, at
    end
  end
end

local function park(head, name)
  local node = nodes[name] or read_node(name)
  zadd(keys.parked, '0', parked_record(name, head, node.is_by_key))
  reparked[name], dues.moved[name] = true, true
  put('>' .. head[2], name .. ' ' .. head[4] .. ' ' .. head[3])
  fresh[keys.parked] = true
  if node.is_by_key and not fair.park(head, name) then return end
  if node.heads then insert_head(node, head) end
end

-- The head of the group of a path, or nil, and where that is parked.
local function parked_at(path)
  local record = get('>' .. path)
  if record then
    local name, text, id = string.match(record, '^(%S+) (%S+) (%S+)$')
    if name then return turns.head(text, path, id), name end
  end
end

local function unpark(head, name)
  local node = nodes[name] or read_node(name)
  zrem(keys.parked, parked_record(name, head, node.is_by_key))
  reparked[name], dues.moved[name] = true, true
  if node.is_by_key then return fair.unpark(head, node, name) end
  local heads = node.heads
  for i = 1, heads and #heads or 0 do
    if heads[i][1] == head[1] then
      table.remove(heads, i)
      return
    end
  end
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
    if turn > ticket or (turn == ticket and other[2] > name) then low = middle + 1 else high = middle end
  end
  table.insert(work, low, {ticket, name})
end

local function look_at(node)
  local head = first_parked(node)
  if not head then
    if node.rate then
      redis.call('ZREM', keys.refills, node.name)
      dues.told[node.name] = nil
    end
    return
  end
  is_finished = false
  if work then
    queue_work(head, node.name)
  else
    redis.call('ZADD', keys.unfinished, 'LT', string.format('%.17g', score_of(head)), node.name)
    fresh[keys.unfinished] = true
  end
end

-- Whether a node is among those to be looked at.
function turns.is_to_be_looked_at(name)
  if is_finished then return false end
  if work and (work.tickets[name] or work.taken[name] or not work.bound) then return work.tickets[name] ~= nil end
  return redis.call('ZSCORE', keys.unfinished, name)
end

-- Park a head, and make sure that the node is looked at in time.
local function park_in_time(head, name)
  park(head, name)
  local node = nodes[name] or read_node(name)
  local is_looked_at = turns.is_to_be_looked_at(name)
  if node.rate or is_looked_at then
    local first = first_parked(node)
    if first and first[1] == head[1] then
      if node.rate then buckets.look_in_time(node, first) end
      if is_looked_at then look_at(node) end  -- with an earlier turn
    end
  end
end

local function is_unfinished()  -- 1 or 0, for replies
  if known['.closed'] then return redis.call('EXISTS', keys.waiters) end  -- they are refused some at a time
  if known['.suspect'] or known['.looking'] or turns.is_expiring then return 1 end
  return not is_finished and redis.call('EXISTS', keys.unfinished) or 0
end

local function unfinished_on(path_nodes, head)
  if is_finished then return nil end
  for _, node in ipairs(path_nodes) do
    local is_looked_at = redis.call('ZSCORE', keys.unfinished, node.name) or known['.looking'] and pauses.is_to_be_looked_at(node)
    local first = is_looked_at and first_parked(node)
    if first and turns.comes_before(first, head) then return node end
  end
end

-- ------------------------------------------------------------------------ holding, waiting

-- Turn a claim, whose nodes all have room for it, into a holder until `deadline`.
local function hold(id, claim, path_nodes, deadline)
  local widest, needs = path_nodes[widest_tier], needs_of(id)
  if widest then
    local need = needs and needs[widest_tier] or 1
    number(claim, widest, need)
    if widest.held == 0 then fresh[keys.holders] = true end
    if widest.held < MANY and widest.held + need >= MANY then unwritten.has_many = true end
  end
  for at = 1, #path_nodes do
    local node, need = path_nodes[at], needs and needs[at] or 1
    if node.rate then buckets.charge(node, need) else node.held = node.held + need end
    moved[node.name] = node
  end
  token = math.max(token + 1, now_us)
  claim.token, claim.granted = whole(token), now_text
  if not widest then  -- of rates alone nothing is held
    put(id, false)
    buckets.remember(id, claim.path)
    return
  end
  write_claim(id, claim)
  zadd(keys.holders, deadline, id)
  if claim.ttl ~= '-' then
    zadd(keys.ttls, seconds(now + tonumber(claim.ttl)), id)
    fresh[keys.ttls] = true
    if not known['.timed'] then put('.timed', '1') end
  end
end

-- Free what a former holder had; grants nothing. The sample is for adaptive tiers.
local function free_claim(id, claim, sample)
  local needs = needs_of(id)
  put(id, false)
  if claim.ttl ~= '-' then zrem(keys.ttls, id) end
  local path_nodes, is_waited_for = nodes_of(claim.path), false
  for at = 1, #path_nodes do
    local node = path_nodes[at]
    if not node.rate then
      node.held = math.max(node.held - need_of(node, needs), 0)  -- should a key be lost, and not the other
      change(node)
      if node.waiting > 0 then touched[node.name] = node end
    end
    is_waited_for = is_waited_for or node.waiting > 0
  end
  if next(rates) then buckets.remember(id, claim.path) end
  -- The length of the hold counts if somebody waits.
  if is_waited_for or times_all(known['.hold']) then
    local held_for = unwritten.held_for
    held_for[#held_for + 1] = now - (tonumber(claim.granted) or now)
  end
  if next(adapting.rules) then adapting.count_end(path_nodes, claim, needs, sample) end
  local widest = path_nodes[widest_tier]
  if widest.held > 0 then
    free_numbers(widest, claim.numbers)
  else
    free_all_numbers(widest)
  end
  return 1
end

-- End a hold, if there is one; grants nothing.
local function release(id, sample)
  local was_there, claim = redis.call('ZREM', keys.holders, id) == 1, read_claim(id)
  local held = claim and not waits(claim) or false
  if was_there ~= held then repairs.suspect() end
  return held and free_claim(id, claim, sample) or 0
end

-- Count one more, or one less, of those who wait and need several slots of a node.
local function count_large(id, change_by)
  if not string.find(id, '*', 1, true) then return end
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
local function wait(id, claim, path_nodes, deadline, newcomer, weight, head, name)
  write_claim(id, claim)
  zadd(keys.queue, '0', claim.path .. ' ' .. newcomer[4] .. ' ' .. id)
  zadd(keys.waiters, deadline, id)
  turns.waiting = turns.waiting + 1
  if path_nodes[#path_nodes].waiting == 0 then fresh[keys.queue], fresh[keys.waiters] = true, true end
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

-- End a wait; returns the next one in its group, as a head that is not parked yet. `rank` is its rank as text.
local function take_out(id, path, rank, path_nodes)
  local record = path .. ' ' .. rank .. ' ' .. id
  zrem(keys.queue, record)
  zrem(keys.waiters, id)
  count_large(id, -1)
  turns.waiting = turns.waiting - 1
  local is_last = false  -- the counts save a search when nobody can be there
  for at = 1, #path_nodes do
    local node = path_nodes[at]
    node.waiting = math.max(node.waiting - 1, 0)
    is_last = is_last or node.waiting == 0
    moved[node.name] = node
  end
  if turns.by and path_nodes[turns.by].waiting == 0 then fair.leave(path_nodes[turns.by]) end
  if turns.waiting <= 0 then turns.forget() end
  if is_last then return nil end
  local following = redis.call('ZRANGEBYLEX', keys.queue, '(' .. record, '(' .. path .. '!', 'LIMIT', '0', '1')[1]
  if following then
    local text, next_id = string.match(following, '^(%S+) (%S+)$', #path + 2)
    return head_to_serve(text, path, next_id)
  end
end

-- Leave the queue, if it is there; grants nothing. Also returns the node where its group was
-- parked.
local function leave(id)
  if not redis.call('ZSCORE', keys.waiters, id) then return 0 end
  local claim = read_claim(id)
  if not claim then
    repairs.suspect()
    return redis.call('ZREM', keys.waiters, id)
  end
  put(id, false)
  local path, ticket, path_nodes = claim.path, claim.ticket, nodes_of(claim.path)
  local head, name = parked_at(path)
  if not head or head[1] ~= ticket then
    take_out(id, path, turns.rank_text(id, ticket), path_nodes)
    return 1, name
  end
  drop_keeps(path_nodes, 1, ticket)
  unpark(head, name)
  local next_head = take_out(id, path, head[4], path_nodes)
  if next_head then
    park_in_time(next_head, name)
  else
    put('>' .. path, false)
  end
  local node = read_node(name)
  if node.rate or has_room(node, 1) then look_at(node) end  -- too little for the head that left, but not for those behind it
  return 1, name
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

-- Read the claim of a head that is granted, and when its silence lasts too long; with those of others that may be
-- granted next.
local function fetch_claims(head, others)
  if head[5] ~= nil then return end
  local heads, ids, unread = {head}, {head[3]}, {}
  note_unread(head[3], unread)
  local function add(more)
    for i = 1, #more do
      local each = more[i]
      if each[5] == nil and each ~= head then
        heads[#heads + 1], ids[#ids + 1] = each, each[3]
        note_unread(each[3], unread)
      end
    end
  end
  add(others)
  for i = #work, math.max(#work - AHEAD + 1, 1), -1 do
    local name = work[i][2]
    local node = nodes[name] or read_node(name)
    if not node.rate and has_room(node, 1) then
      if not node.heads and not reparked[name] then read_heads(node) end
      add(node.heads or {})
    end
  end
  fetch(unread)
  local scores = redis.call('ZMSCORE', keys.waiters, unpack(ids))
  for i = 1, #scores do heads[i][5] = scores[i] end
end

-- Grant the head of a group that is parked here, where there is room for it, or park it where it lacks something.
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
  fetch_claims(head, here.heads or {})
  local claim, deadline = read_claim(id), head[5]
  if claim and deadline then
    -- A grant is not a sign of life: a waiter that died blocks the others for no longer than if it
    -- had not been granted.
    hold(id, claim, path_nodes, deadline)
    notify(id, claim.owner, 'granted ' .. id .. ' ' .. number_of(claim) .. ' ' .. claim.token)
  end
  turns.count_grant(ticket, path, needs_of(id))
  local next_head = take_out(id, path, head[4], path_nodes)
  if next_head then
    park_in_time(next_head, (lacks(path_nodes, needs_of(next_head[3]), next_head) or here).name)
  else
    put('>' .. path, false)
  end
  return true
end

-- How many heads this call may still grant something; to park one counts half, which is what it costs.
function turns.looks_left()
  if not turns.left then
    turns.left = math.ceil(turns.AT_ONCE * 12 / #KEYS)
    turns.left = math.max(turns.left - math.floor(turns.renewed / 25), 8)
  end
  return turns.left
end

-- Read the nodes that have to be looked at first. Enough for one serve(), unless some of them
-- turn out to have no slot.
local function load_work()
  work = {tickets = {}, scores = {}, stored = {}, taken = {}, most = math.min(LOOKS, math.ceil(turns.looks_left()))}
  if is_finished then return end
  local found = redis.call('ZRANGE', keys.unfinished, 0, work.most - 1, 'WITHSCORES')
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
  local taken, added = {}, {}
  for name in pairs(work.taken) do taken[#taken + 1] = name end
  for name in pairs(work.tickets) do
    local score = work.scores[name]
    if work.taken[name] or work.stored[name] ~= score then
      added[#added + 1] = string.format('%.17g', score)
      added[#added + 1] = name
      if work.stored[name] and not work.taken[name] then taken[#taken + 1] = name end
    end
  end
  call_in_chunks(taken, 'ZREM', keys.unfinished)
  call_in_chunks(added, 'ZADD', keys.unfinished, 'LT')
  if #added > 0 then fresh[keys.unfinished] = true end
  is_finished = #work == 0 and not work.bound
  work = nil
end

-- Whether a node with this ticket, that is not among those to be looked at, would be the next of them.
local function comes_first(ticket, name)
  local following = work[#work]
  return (not work.bound or ticket <= work.bound) and not (following and following[1] <= ticket) and not work.tickets[name]
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

local function serve()
  if known['.closed'] then  -- nobody is granted anything
    repairs.unlink(keys.unfinished)
    is_finished, touched = true, {}
    return
  end
  if turns.is_expiring or turns.looks_left() <= 0 then
    for name, node in pairs(touched) do
      touched[name] = nil
      look_at(node)
    end
    return
  end
  load_work()
  if pauses.ends then pauses.finish(now_us) end
  if known['.looking'] then pauses.go_on_looking() end
  if next(rates) then buckets.pass_time() end
  for name, node in pairs(touched) do
    touched[name] = nil
    look_at(node)
  end
  write_behind()
  local looks, visits = LOOKS, VISITS
  while looks > 0 and turns.left > 0 and visits > 0 do
    local following = take_work()
    visits = visits - 1
    if not following then break end
    local here, ticket = read_node(following[2]), following[1]
    local is_worth_looking = here.rate or has_room(here, 1)  -- where nothing is free, nobody has to look
    while ticket do
      local head = is_worth_looking and first_parked(here)
      local is_next = head and turn_of(head) == ticket
      ticket = nil
      local is_simple = not (here.rate or here.kept or known['.large'])  -- one slot is all that it needs
      if head and not is_simple and not has_room(here, need_of(here, needs_of(head[3])), head[1]) then
        if here.rate then buckets.look_in_time(here, head) end
        visits = visits - 2  -- it costs as much as a head
      elseif head then
        if is_next then
          looks = looks - 1
          turns.left = turns.left - (examine(head, here) and 1 or 0.5)
        end
        -- Stay here as long as no earlier head has to be looked at elsewhere.
        is_worth_looking = here.rate or has_room(here, 1)
        if is_worth_looking then
          head = first_parked(here)
          local turn = head and turn_of(head)
          if head and looks > 0 and turns.left > 0 and comes_first(turn, here.name) then ticket = turn else look_at(here) end
        end
      end
    end
  end
  write_all()
  store_work()
end

-- End all whose time is up, some in each call; anything is granted only after that, when no waiter is left whose own
-- time is up.
local function expire()
  is_finished = false
  if pauses.ends then pauses.follow_clock() end
  local left = math.ceil(AT_ONCE * 12 / #KEYS)  -- of what this call may do for each object; to leave costs twice as much as to release
  left = math.max(left - math.floor(turns.renewed / 50), math.min(left, 5))
  local function some(key, cost)
    return left < cost and {} or redis.call('ZRANGEBYSCORE', key, '-inf', now_text, 'LIMIT', '0', math.floor(left / cost))
  end
  local function release_some(ids, sample)
    for _, id in ipairs(ids) do
      if release(id, sample) == 0 and sample then redis.call('ZREM', keys.ttls, id) end
    end
    left = left - #ids
  end
  local function drop_waiters(ids)
    for _, id in ipairs(ids) do leave(id) end
    left = left - 2 * #ids
  end
  if known['.timed'] then release_some(some(keys.ttls, 1), 'd-') end
  local grace = known['.grace'] and tonumber(known['.grace']) or 0
  local is_grace = grace > now and grace <= now + longest
  if known['.grace'] and not is_grace then put('.grace', false) end
  local silent = is_grace and {} or some(keys.holders, 1)
  local suspects = {}
  if blocked_until > now then
    losses.note_aware(silent)
  elseif #silent > 0 then
    suspects = deaths.just_silent(keys.holders)
    release_some(silent)
  end
  silent = is_grace and {} or some(keys.waiters, 2)
  if #silent > 0 then
    for _, id in ipairs(deaths.just_silent(keys.waiters)) do suspects[#suspects + 1] = id end
  end
  drop_waiters(silent)
  -- Whatever else a dead process has here goes with that, or each would keep its turn until its
  -- own time is up.
  if #suspects > 0 and left >= 2 then
    drop_waiters(deaths.claims(suspects, redis.call('ZRANGE', keys.waiters, 0, SUSPECTED - 1), math.floor(left / 2)))
  end
  if #suspects > 0 and left >= 1 and blocked_until <= now then
    release_some(deaths.claims(suspects, redis.call('ZRANGE', keys.holders, 0, SUSPECTED - 1), left))
  end
  if known['.closed'] then
    for _, id in ipairs(redis.call('ZRANGE', keys.waiters, 0, math.max(math.floor(left / 2), 1) - 1)) do
      local claim = read_claim(id)
      leave(id)
      notify(id, claim and claim.owner, 'closed ' .. id .. (known['.reason'] and ' ' .. known['.reason'] or ''))
    end
  end
  turns.is_expiring = false
  for _, key in ipairs(left < 2 and (is_grace and {keys.ttls} or {keys.waiters, keys.holders, keys.ttls}) or {}) do
    if #redis.call('ZRANGEBYSCORE', key, '-inf', now_text, 'LIMIT', '0', '1') > 0 then turns.is_expiring = true end
  end
  serve()
end

-- In how many ms the next deadline is, 0 if something is unfinished, -1 if there is nothing to
-- come back for. Waiters come back then.
local function next_end()
  if is_unfinished() == 1 then return 0 end
  local soonest = blocked_until > now and blocked_until or nil
  for _, key in ipairs({keys.holders, keys.ttls, keys.waiters}) do
    local score = tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2])
    if score and key ~= keys.ttls then score = math.max(score, tonumber(known['.grace']) or 0) end
    if score and (not soonest or score < soonest) then soonest = score end
  end
  if next(rates) then
    local us = tonumber(redis.call('ZRANGE', keys.refills, 0, 0, 'WITHSCORES')[2])
    if us and (not soonest or us / 1000000 < soonest) then soonest = us / 1000000 end
  end
  for _, us in pairs(pauses.ends or {}) do
    if us > now_us then soonest = math.min(soonest or math.huge, us / 1000000) end
  end
  if not soonest then return -1 end
  return math.max(math.ceil((soonest - now) * 1000), 0)
end

-- ------------------------------------------------------------------------------ replies

-- The value of a node, for replies to somebody who got nothing of it; of a rate, its text.
local function value_text(node) return node.rate and node.rate.text or value_of(node) end

-- How many slots are held; of a rate, how much of its burst is taken.
local function held_of(node)
  if not node.rate then return node.held end
  buckets.refill(node)
  return node.rate.burst - math.floor(node.level / node.rate.unit)
end

-- A node that was in the way, for replies: its name, value, how many slots of it are held, and how many wait.
local function in_the_way(node)
  return node.name, value_text(node), held_of(node), pauses.ends and pauses.waiting_text(node) or node.waiting
end

-- The tier that can never give a path what it needs, and its value; nil if there is none.
local function unfit(path_nodes, needs)
  for _, node in ipairs(needs and path_nodes or {}) do
    local value = adapting.least[node.tier] or value_of(node)  -- it may fall to that
    if value > 0 and need_of(node, needs) > value then return node.tier - 1, value end
  end
end

-- The last thing that a script does: write, and reply. The reply is followed by the messages for
-- the caller, "unfinished" among them if a call of tiers/heartbeat.lua has to serve the others.
local function answer(reply)
  save()
  for i = 1, #messages do reply[#reply + 1] = messages[i] end
  if is_unfinished() == 1 then reply[#reply + 1] = 'unfinished' end
  return reply
end

-- What is needed only now and then.
-- include tiers/agreement.lua
-- include tiers/rates.lua
-- include tiers/fair.lua
-- include tiers/pauses.lua
-- include tiers/adaptive.lua
-- include tiers/repair.lua
-- include tiers/loss.lua
