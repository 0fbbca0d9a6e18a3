-- request.lua: take what is needed of every tier at once, or else wait, holding nothing; one
-- request, or several of one limit.
-- KEYS  the limit (rules/state.lua)
-- ARGV  1 now (s; empty: the server's clock)   2 where names are noted (note_name), or empty
--       3 the tiers' names, as the callers were made
--       4 and their values; of a semaphore "", and its value or rules
--       5 heartbeat_max_interval (s)   6 ttl (s; "-": none)
--       7 "wait" or "try"; "wait N n,n,..." waits only while fewer than N others wait, and fewer
--         than n at each node, "-" being any number; followed by "shed S", only if it is expected
--         to be served within S seconds; of a semaphore, "replace" kicks the longest holders, and
--         waits in front if that takes time, "replace try" only if it doesn't
--       8 "again" if they may have been requested before, else empty
--       9 owner: "!secret host pid label"
--       10 "due" to be told when the next check is due
--       11 of a semaphore the pattern of foreign notification lists; of tiers "node|weight ..." in
--         fair order, and "node=value ..." for nodes of tiers where each key has its own value;
--         those in use keep theirs
--       12... in turn an acquisition id, which says what it needs (rules/base.lua), and its path
-- Returns {"granted", number, token}, and of a semaphore its value
--         {"queued", ms until the next check is due, -1, or -2 (next_end in rules/ending.lua)}, and
--           of a semaphore its value
--         {"busy", node, value, held, waiting}     only for "try"; nothing has changed; of a
--           semaphore also the oldest holders
--         {"full", node, value, held, waiting, how many wait where no more may, when it would be
--           served (s) or "", 1 if that is too late, else 0}   it may not wait; nothing changes.
--           In both, waiting is a text while the node is paused: "number ms", and the value of a
--           rate is its text
--         {"refused", value, tier}                 it needs more than there is
--         {"conflict", tier or -1, its value, held, waiting}   in use with other tiers
--         {"closed", the reason if there is one}   for everybody, until it is reopened
-- followed by messages for the caller; for several, {"each", one of these for each} with the
-- messages after the last.
-- Mirrors PathLedger.expire and serve, then PathLedger.request or try_request for each.
-- include rules/quick.lua
local fine, granted = pcall(quick.request)  -- the rules reset what is damaged
if fine and granted then return granted end
-- include rules/state.lua
-- include rules/estimate.lua
local shape, declared, interval_text, ttl, word = ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local again, owner, tell_due = ARGV[8] ~= '', ARGV[9], ARGV[10] ~= ''
local interval, first, deadline = tonumber(interval_text), 12, nil
local replaces, may_wait = word:sub(1, 7) == 'replace', word:sub(-3) ~= 'try'
local bounds, patience = word:match('^wait (.+)$'), word:match(' shed (%S+)$')

-- The same reply to all requests, or to each what `reply_to` says.
local function each(reply_to)
  local replies = {'each'}
  for i = first, #ARGV, 2 do replies[#replies + 1] = reply_to(ARGV[i], ARGV[i + 1]) end
  return replies
end

local function finish(replies)
  local last = replies[#replies]
  if last[1] ~= 'closed' and last[1] ~= 'conflict' then replies[#replies] = answer(last) end
  return #replies == 2 and replies[2] or replies
end

local function queued_reply(node) return {'queued', -1, is_line and value_of(node) or nil} end

local function granted_before(id)
  local claim = again and read_claim(id)
  if claim and not is_waiting(claim) then return granted_reply(claim) end
  if again and not widest_tier and buckets.recall(id) then return {'granted', 0, last_token} end
end

-- How many wait where no more may wait: in total, or at a node; nil if one more may.
local function overload(path_nodes)
  local most, each_most = bounds:match('^(%S+) ?([%d,-]*)')
  if tonumber(most) and turns.waiting >= tonumber(most) then return turns.waiting end
  local tier = 0
  for text in each_most:gmatch('[^,]+') do
    tier = tier + 1
    if tonumber(text) and path_nodes[tier].waiting >= tonumber(text) then
      return path_nodes[tier].waiting
    end
  end
end

local function weight_of(path) return turns.by and turns.weights[fair.key_of(path)] or 1 end

local function claim_of(ticket, path)
  return {
    before = interval_text .. ' ' .. ttl .. ' ' .. whole(ticket), ttl = ttl, ticket = ticket,
      granted = '-' .. now_text,
    numbers = '0', token = '0', path = path, owner = owner,
  }
end

-- Kick the longest holders for a request, as far as that is needed; returns its reply, or nil if it
-- has to wait.
local function replace(id, claim, path_nodes, needs)
  local node, need = path_nodes[1], need_of(path_nodes[1], needs)
  local chosen, at_once = line.to_replace(need)
  local may_take = chosen and (has_room(node, need) or chosen[1] and at_once)
  if not may_wait and not may_take then return busy_reply(node) end
  for _, holder in ipairs(chosen or {}) do kick(holder) end
  if may_take then
    last_ticket = claim.ticket
    hold(id, claim, path_nodes, deadline)
    queue.serve()
    return granted_reply(claim)
  end
end

local function request(id, path)
  local granted = granted_before(id)
  if granted then return granted end
  local path_nodes, needs = nodes_of(path), needs_of(id)
  local old = again and read_claim(id)
  if old then return queued_reply(path_nodes[1]) end
  local tier, value = unfit(path_nodes, needs)
  if tier then return {'refused', value, tier} end
  local ticket = queue.next_ticket()
  local newcomer = queue.arrive(id, path, path_nodes, needs, ticket)
  local claim, is_free = claim_of(ticket, path), newcomer.is_free
  if not is_free and replaces then
    local reply = replace(id, claim, path_nodes, needs)
    if reply then return reply end
    newcomer.place = seconds(ticket / 1000000 - AHEAD_OF_ALL)
  elseif not is_free and not may_wait then
    return busy_reply(newcomer.lacking)
  end
  local waiting = not is_free and bounds and overload(path_nodes)
  if waiting or (patience and not is_free) then
    local expected = estimates.of(path, path_nodes, needs)
    local is_late = not waiting and expected and expected > (tonumber(patience) or math.huge)
    if waiting or is_late then
      for _, node in ipairs(is_late and path_nodes or {}) do
        waiting = math.max(waiting or 0, node.waiting)
      end
      local name, value_there, held, waiting_there = in_the_way(newcomer.lacking)
      return {'full', name, value_there, held, waiting_there, waiting, estimates.text(expected),
        is_late and 1 or 0}
    end
  end
  last_ticket = ticket
  if is_free then
    if turns.waiting > 0 and not is_line then
      turns.count_grant(ticket, path, needs, weight_of(path))
    end
    hold(id, claim, path_nodes, deadline)
    if not widest_tier then buckets.remember(id, path) end
    return granted_reply(claim)
  end
  local has_served = queue.wait(newcomer, id, claim, path_nodes, deadline, weight_of(path))
  claim = has_served and read_claim(id)
  if has_served and not (claim and is_waiting(claim)) then
    for i = #messages, 1, -1 do  -- the reply says it
      local token_text = messages[i]:match('^granted (%S+) %d+ (%d+)$')
      if token_text and messages[i]:sub(9, #id + 9) == id .. ' ' then
        table.remove(messages, i)
        if not claim then return {'granted', 0, last_token} end
      end
    end
    return granted_reply(claim)
  end
  return queued_reply(path_nodes[1])
end

local function run()
  open(1, #KEYS, ARGV[1])
  caller = client_of(ARGV[first])
  if is_line then pattern = ARGV[11] end
  if known['.closed'] then
    -- One that is requested again may have been granted before the close.
    return finish(each(function(id) return granted_before(id) or closed_reply() end))
  end
  -- A server at its maxmemory refuses newcomers here, before anything has changed: it refuses a
  -- script's first write if that may take memory, and no later one.
  if not again then call('ZADD', keys.holders, 'XX', '0', '') end
  local is_new = known['.shape'] ~= shape or known['.declared'] ~= declared
  local clash = is_new and agreement.declare(shape, declared)
  if clash then
    return finish(each(function()
      return {'conflict', clash - 1, agreement.conflicting(clash), counts.held_before,
        turns.waiting}
    end))
  end
  if interval > longest then
    longest = interval
    put('.interval', interval_text)
  end
  outlive(longest)
  expire()
  queue.serve()
  for name, value in string.gmatch(not is_line and ARGV[11] or '', '([^%s=]+)=(%d+)') do
    local node = read_node(name)
    node.own = node.own or tonumber(value)
  end
  if patience and not times_all(known['.hold']) then
    put('.hold', estimates.time_all(known['.hold']))
  end
  turns.weights = {}
  for name, weight in string.gmatch(turns.by and ARGV[11] or '', '([^%s|]+)|(%S+)') do
    turns.weights[name] = tonumber(weight)
  end
  deadline = seconds(now + interval)
  local replies = each(request)
  local due = (tell_due or again) and next_end()
  for i = 2, #replies do
    if replies[i][1] == 'queued' then replies[i][2] = due or foreign() > 0 and -2 or -1 end
  end
  return finish(replies)
end
return guarded(run)
