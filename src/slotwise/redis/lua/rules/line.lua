-- rules/line.lua: the queue of a semaphore, which is one node with one path, and the clients that
-- share it and speak only the document. Not a script.
--
-- A member of main or of waiting that doesn't begin with "sw-" is a claim of one slot by such a
-- client. It has no record, knows no slot numbers, wakes nobody when it releases, and is told of
-- its grant by a push to its own list. These clients may end holds of ours that are silent, and
-- grant slots to our waiters, without a word in our records: then more of ours are recorded than
-- there are, which `mend` puts right, or a waiter with a claim that still waits is in main, which
-- its next heartbeat completes.

local MOST_SLOTS = 10000   -- of one acquisition; others are made up
local AHEAD_OF_ALL = 10^9  -- the head start (s) of one that replaces holders

local function slots_of(id)
  local needs = needs_of(id)
  return needs and needs[1] or 1
end

-- "sw-...*3#2" is a part of an acquisition, not an id.
local function id_of(member) return member:match('^(sw%-.*%*[%d.]+)#%d+$') or member end

made_when_needed(line, function()
function line.open()
  if not values[1] then  -- nothing of ours; perhaps they were here first
    local text = call('GET', keys.max)
    values[1] = tonumber(text or nil)
    if text and not (values[1] and values[1] >= 1 and values[1] <= 2^53 and values[1] % 1 == 0) then
      damaged('its value is ' .. text:sub(1, 40))
    end
  end
  widest_tier, line.latest = 1, nil
  local node = read_node('0:', 1)
  node.held, node.waiting = counts.held_before, call('ZCARD', keys.queue)
  turns.waiting, counts.timed, line.shown = node.waiting, call('ZCARD', keys.ttls), value_of(node)
  if counts.waits > node.waiting + foreign() then line.mend() end
end

-- Whether all that a holder has is in main: with a part of its slots it has lost them all.
local function has_all_parts(id, members)
  for part = 2, slots_of(id) do
    if not members[id .. '#' .. part] then return false end
  end
  return members[id]
end

-- Forget the claims of those that are in no queue and not in main any more, and count the others.
function line.mend()
  local node, found, members, taken = read_node('0:'), call('HGETALL', keys.state), {}, {}
  for _, key in ipairs({keys.holders, keys.queue}) do
    for _, member in ipairs(call('ZRANGE', flush(key), 0, -1)) do members[member] = true end
  end
  for i = 1, #found, 2 do
    if changed[found[i]] == nil then known[found[i]] = found[i + 1] end
  end
  counts.held, counts.waits = 0, 0
  for id, text in pairs(known) do
    if text and id:sub(1, 3) == 'sw-' then
      local claim = read_claim(id)
      if is_waiting(claim) and members[id] then
        counts.waits = counts.waits + 1
      elseif is_waiting(claim) or not has_all_parts(id, members) then
        line.remove(id)
        put(id, false)
        call('ZREM', keys.ttls, id)
      else
        counts.held = counts.held + slots_of(id)
        for low, high in slot_numbers.each(claim.numbers) do taken[#taken + 1] = {low, high} end
      end
    end
  end
  counts.timed = call('ZCARD', keys.ttls)
  slot_numbers.recount(node, taken)
  change(node)
  touched[node.name] = node
end

-- Write the value where statistics look for it, if it may have changed.
function line.save()
  local value = value_of(read_node('0:'))
  if known['.shape'] and (changed['.values'] or changed['.life'] or value ~= line.shown) then
    call('SET', keys.max, value, 'KEEPTTL')
    fresh[keys.max], line.shown = true, value
  end
end

function line.is_unfinished()
  local node = read_node('0:')
  if known['.closed'] then return math.min(node.waiting, 1) end
  return (turns.is_expiring or left <= 0 and node.waiting > 0 and values[1] and has_room(node, 1))
    and 1 or 0
end

function line.look_at(node) touched[node.name] = node end
function line.has_waiters_on() return turns.waiting > 0 end
function line.has_waiters_at() return turns.waiting > 0 end

-- A newcomer: its place in the queue, and whether it is granted at once.
function line.arrive(id, _, path_nodes, needs, ticket)
  local node = path_nodes[1]
  local place, is_free = seconds((ticket - turns.head_start_of(id)) / 1000000),
    has_room(node, need_of(node, needs))
  if is_free and node.waiting > 0 then
    local first = call('ZRANGE', flush(keys.queue), 0, 0, 'WITHSCORES')[2]
    is_free = not first or tonumber(place) < tonumber(first)
  end
  return {place = place, is_free = is_free, lacking = node}
end

-- The ticket of a newcomer: those of other clients count too, whatever their clocks say.
function line.next_ticket()
  if not line.latest then
    local last = call('ZREVRANGE', flush(keys.queue), 0, 0, 'WITHSCORES')
    line.latest = last[1] and last[1]:sub(1, 3) ~= 'sw-' and math.floor(last[2] * 1000000 + 0.5)
      or 0
  end
  return math.max(last_ticket + 1, now_us, line.latest + 1)
end

local function count_waiting(change_by)
  local node = read_node('0:')
  node.waiting, turns.waiting = node.waiting + change_by, turns.waiting + change_by
  change(node)
end

function line.wait(newcomer, id, claim, _, deadline)
  write_claim(id, claim)
  zadd(keys.queue, newcomer.place, id)
  zadd(keys.waiters, deadline, id)
  fresh[keys.queue], fresh[keys.waiters] = true, true
  counts.waits = counts.waits + 1
  count_waiting(1)
end

local function dequeue(id)
  zrem(keys.queue, id)
  zrem(keys.waiters, id)
  count_waiting(-1)
end

-- Leave the queue, if it is there; grants nothing.
function line.leave(id)
  local claim = read_claim(id)
  if claim and is_waiting(claim) then
    put(id, false)
    counts.waits = counts.waits - 1
  end
  if not call('ZSCORE', flush(keys.queue), id) then return 0 end
  dequeue(id)
  touched['0:'] = read_node('0:')
  return 1, '0:'
end

-- Remove the members of an id from main; returns how many there were.
function line.remove(id)
  local node, members, removed = read_node('0:'), {id}, 0
  for part = 2, math.min(slots_of(id), MOST_SLOTS) do members[part] = id .. '#' .. part end
  flush(keys.holders)
  for from = 1, #members, CHUNK do
    removed = removed + call('ZREM', keys.holders,
      unpack(members, from, math.min(from + CHUNK - 1, #members)))
  end
  node.held, touched['0:'] = node.held - removed, node
  change(node)
  return removed
end

-- End a hold that our scripts have not granted; returns how many slots it had.
function line.release_foreign(id, claim)
  local removed = id_of(id) == id and line.remove(id) or 0
  if removed > 0 then
    call('ZREM', keys.ttls, id)
    if claim then line.leave(id) end
  end
  return removed
end

-- Remove a waiter from the queue and tell it why.
function line.refuse(id, word, ...)
  local claim = read_claim(id)
  line.leave(id)
  if claim then notify(id, claim.owner, table.concat({word, id, ...}, ' ')) end
end

-- The list by which clients that speak only the document are told of a grant.
local function list_of(id)
  local from, to = pattern:find('@@@ACQUISITION_ID@@@', 1, true)
  return from and pattern:sub(1, from - 1) .. id .. pattern:sub(to + 1)
end

-- Remove the list of one of ours, which nobody reads.
function line.drop_list(id)
  local list = list_of(id)
  if list then call('DEL', list) end
end

-- Tell a client that speaks only the document of its grant, by its list. It wakes nobody when it
-- releases: the processes that wait are told to check by themselves, which is more often from now
-- on.
local function grant_foreign(node, id, deadline)
  zadd(keys.holders, deadline, id)
  fresh[keys.holders] = true
  node.held = node.held + 1
  change(node)
  local list = list_of(id)
  if list then
    call('RPUSH', list, '1')
    call('PEXPIRE', list, 60000)
  end
  if foreign() == 1 then have_waiters_look() end
end

-- Serve the first in the queue; returns whether the next one may be served too.
local function serve_first(node, id, alive_until)
  local is_ours, needs = id:sub(1, 3) == 'sw-', needs_of(id)
  local claim, need, value = is_ours and read_claim(id), needs and needs[1] or 1, value_of(node)
  if not alive_until or tonumber(alive_until) <= now or (is_ours and not claim) then
    line.leave(id)
  elseif need > value then
    line.refuse(id, 'refused', whole(value), '0')  -- a resize was not finished
  elseif not has_room(node, need) then
    -- nobody passes a head that does not fit; that was no work, or all would come back for it at
    -- once
    return false
  else
    dequeue(id)
    -- A grant is not a sign of life: a waiter that died blocks the others for no longer than if it
    -- had not been granted.
    if claim then
      counts.waits = counts.waits - 1
      hold(id, claim, {node}, alive_until)
      notify(id, claim.owner, granted_message(id, claim))
    else
      grant_foreign(node, id, alive_until)
    end
  end
  left = left - 1 - need / 20
  return true
end

-- Hand free slots to the queue, strictly in order.
function line.serve()
  touched = {}
  local node = read_node('0:')
  if pauses.ends then pauses.finish(now_us) end
  if known['.closed'] or not values[1] or turns.is_expiring then return end
  while left > 0 and node.waiting > 0 and has_room(node, 1) do
    local most = math.min(math.ceil(left), value_of(node) - node.held)
    local ids, unread = call('ZRANGE', flush(keys.queue), 0, most - 1), {}
    if not ids[1] then break end
    for _, id in ipairs(ids) do note_unread(id, unread) end
    fetch(unread)
    local alive = call('ZMSCORE', flush(keys.waiters), unpack(ids))
    for i, id in ipairs(ids) do
      if left <= 0 or not has_room(node, 1) or not serve_first(node, id, alive[i]) then return end
    end
  end
end

-- ------------------------------------------------------------------------- replacing

-- The longest holders, as many as are needed for `need` more, and whether all of them leave at
-- once; {} if they are too few, or while nothing is granted; nil while another one waits in front.
-- Those that are already leaving are left out, and so are clients that know no claims: they could
-- not be told. Mirrors DeclaredLedger.replaceable.
function line.to_replace(need)
  local node, found, chosen, at_once = read_node('0:'), {}, {}, true
  local first = call('ZRANGE', flush(keys.queue), 0, 0, 'WITHSCORES')[2]
  if first and tonumber(first) < now - AHEAD_OF_ALL / 2 then return nil end
  if pauses.ends and pauses.until_of(node) > now_us then return {}, false end
  local missing = need + node.held - value_of(node)
  if node.waiting > 0 then missing = math.max(missing, need) end
  local members, unread = call('ZRANGE', flush(keys.holders), 0, CHUNK - 1), {}
  for _, member in ipairs(members) do note_unread(member, unread) end
  fetch(unread)
  local ends = members[1] and call('ZMSCORE', flush(keys.ttls), unpack(members)) or {}
  for i, member in ipairs(members) do
    local claim = read_claim(member)
    local grace = claim and grace_of(claim)
    if claim and not is_waiting(claim) and not (grace and ends[i]
        and tonumber(ends[i]) <= now + grace) then
      found[#found + 1] = {tonumber(claim.token), member, grace}
    end
  end
  table.sort(found, function(one, other) return one[1] < other[1] end)
  for _, each in ipairs(found) do
    if missing <= 0 then break end
    chosen[#chosen + 1] = each[2]
    missing = missing - slots_of(each[2])
    if each[3] then at_once = false end
  end
  if missing > 0 then return {}, false end
  return chosen, at_once
end

-- For each of the longest holders a text "s owner", for the message to one that got nothing: for
-- how long it has held, and the owner in its claim. None if there are too many: the oldest of some
-- is not the oldest.
function line.oldest_holders()
  local held, found = read_node('0:').held, {}
  if held == 0 or held > 32 then return found end
  local members = call('ZRANGE', flush(keys.holders), 0, -1)
  fetch(members)
  for _, member in ipairs(members) do
    local claim = read_claim(member)
    if claim and not is_waiting(claim) then found[#found + 1] = claim end
  end
  table.sort(found, function(one, other) return tonumber(one.token) < tonumber(other.token) end)
  local texts = {}
  for i = 1, math.min(#found, 3) do
    texts[i] = whole(math.max(now - (tonumber(found[i].granted) or now), 0)) .. ' '
      .. found[i].owner
  end
  return texts
end
end)
