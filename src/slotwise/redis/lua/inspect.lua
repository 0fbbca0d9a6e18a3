-- inspect.lua: how full a limit is, who holds and who waits. Each call has a bounded part of a long
-- list.
-- KEYS  the limit (rules/state.lua); for "survey" the limits, one after the other
-- ARGV  1 now (s; empty: the server's clock)   2 where names are noted, or empty
--       3 of a semaphore the pattern of foreign notification lists, else empty
--       4 what: "tiers", "nodes", "path", "estimate", "holders", "waiters", "changes" or "survey"
--       5 for "path" and "estimate" the path, followed by "*" and what is needed if that is not one
--         slot of each; for "changes" a node; for lists where to continue, empty at first; for
--         "survey" the patterns of all limits
-- Returns {1 if closed and 2 if for a reason, the reason or "", 1 if something is unfinished, or
-- why all was reset, where to continue, or "" at the end}, followed for
--   "tiers"     by the tiers' names, or "" if nobody is there, their values as they were declared,
--               holders, waiters, 1 if a bucket is not full, else 0
--   "nodes"     by the tiers' values, or "", the time (us), .pauses or "", how many wait, {the
--               numbers of tiers that are frozen, and nodes}, then in turn a node and its record
--               (rules/state.lua)
--   "path"      for each node: held, waiting, value, kept, for how long it is paused (ms), 1 if
--               frozen, else 0; or by nothing if nobody is there
--   "estimate"  by when a newcomer would be served (s) or "", or "refused", value and tier if never
--   "changes"   by how the value of an adaptive node has moved, its rules or "", and 1 if it is
--     frozen, else 0
--   "holders", "waiters"  in turn by an id, its claim, or "" if it has none, and since when (s)
--               that waits, and the node that a waiter or the head of its group lacks, else "". An
--               entry of a long list may appear twice.
-- "survey" returns for each limit {} if nothing is known of it, {"failed", why} if it can't be
-- read, or what is returned for "path", of a semaphore, and for "tiers" followed by "nodes", of
-- tiers.
-- Mirrors PathLedger.expire, then reads.
-- include rules/state.lua
-- include rules/estimate.lua
local what, from = ARGV[4], ARGV[5]
local reply

local function add(...)
  for i = 1, select('#', ...) do reply[#reply + 1] = (select(i, ...)) end
end

local show = {}

function show.tiers()
  add(known['.shape'] or '', known['.declared'] or '', counts.held, turns.waiting)
  add(next(rates) and call('EXISTS', keys.cleanup) or 0)
end

function show.nodes()
  -- A new key of a tier that is frozen as a whole starts at that value.
  for tier, at in pairs(adapting.frozen) do
    value_texts[tier] = value_texts[tier]:gsub('^(%d+_%d+_)%d+', '%1' .. at)
  end
  local count = what == 'survey' and PAGE / 5 or 4 * PAGE  -- there are others in that call
  local found = call('HSCAN', keys.state, from == '' and '0' or from, 'MATCH', '[0-9]*', 'COUNT',
    count)
  reply[4] = found[1] ~= '0' and found[1] or ''
  for i = 2, known['.rated'] and #found[2] or 0, 2 do  -- a bucket that wasn't used since a resize
    local node = read_node(found[2][i - 1])
    if node.rate then found[2][i] = buckets.record(node) .. (found[2][i]:match('=.*') or '') end
  end
  add(table.concat(value_texts, ','), whole(now_us), known['.pauses'] or '', turns.waiting)
  local frozen = {}
  for tier in string.gmatch(known['.frozen'] or '', '(%d+)=') do frozen[#frozen + 1] = tier end
  for i = 1, next(adapting.rules) and #found[2] or 0, 2 do
    if adapting.is_frozen(found[2][i]) then frozen[#frozen + 1] = found[2][i] end
  end
  add(frozen)
  for i = 1, #found[2] do reply[#reply + 1] = found[2][i] end
end

function show.path()
  if not (known['.shape'] or is_line and values[1]) then return end
  for _, node in ipairs(nodes_of(from)) do
    local value, kept = value_of(node), node.kept_slots or 0
    if queue.has_waiters_at(node) then kept = math.max(value - held_of(node), 0) end
    local paused_ms = pauses.ends and math.max(math.ceil((pauses.until_of(node) - now_us) / 1000),
      0) or 0
    add(held_of(node), node.waiting, value, kept, paused_ms)
    add(adapting.rules[node.tier] and adapting.read(node).frozen or 0)
  end
end

function show.changes()
  local node = known['.shape'] and read_node(from)
  local rules = node and adapting.rules[node.tier]
  add(get('&' .. from) or '', rules or '', rules and adapting.read(node).frozen or 0)
end

function show.estimate()
  if not (known['.shape'] or is_line and values[1]) then return add('0') end
  local path = from:match('^[^*]+')
  local path_nodes, needs = nodes_of(path), needs_of(from)
  local tier, value = unfit(path_nodes, needs)
  if tier then return add('refused', value, tier) end
  add(estimates.text(estimates.of(path, path_nodes, needs)))
end

local function list(key, lacking_of)
  local ids = {}
  if from == '' and call('ZCARD', key) <= PAGE then
    ids = call('ZRANGE', key, 0, -1)
  else  -- deadlines change all the time: going through them in order might miss some
    local found = call('ZSCAN', key, from == '' and '0' or from, 'COUNT', PAGE)
    reply[4] = found[1] ~= '0' and found[1] or ''
    for i = 1, #found[2], 2 do ids[#ids + 1] = found[2][i] end
  end
  fetch(ids)
  local fields, claims = {}, {}
  for _, id in ipairs(ids) do
    claims[id] = read_claim(id)
    if claims[id] then note_unread('>' .. claims[id].path, fields) end
  end
  if not is_line then fetch(fields) end
  for _, id in ipairs(ids) do
    if id_of(id) == id then add(id, claims[id] and known[id] or '', lacking_of(id, claims[id])) end
  end
end

function show.holders() list(keys.holders, function() return '' end) end

function show.waiters()
  list(keys.waiters, function(id, claim)
    if is_line then return call('ZSCORE', keys.queue, id) or '' end
    local _, lacking = queue.parked_at(claim and claim.path or '')
    return lacking or ''
  end)
end

local function look(first, count, shows)
  open(first, count, ARGV[1])
  if known['.shape'] or is_line then
    expire()
    save()
    if known['.closed'] then keep_closed() end
    save()
  end
  if what == 'survey' and not (known['.shape'] or known['.closed'] or is_line and values[1]) then
    return {}
  end
  reply = {known['.closed'] and (known['.reason'] and 2 or 1) or 0, known['.reason'] or '',
    queue.is_unfinished(), ''}
  for _, each in ipairs(shows) do show[each]() end
  if why_reset then reply[3] = why_reset end
  return reply
end

pattern = ARGV[3]
if what ~= 'survey' then return guarded(look, 1, #KEYS, {what}) end
local replies, first = {}, 1
for i = 5, #ARGV do
  local count = ARGV[i] ~= '' and 7 or 14
  pattern, from = ARGV[i], count == 7 and '0:' or ''
  local fine, found = pcall(guarded, look, first, count,
    count == 7 and {'path'} or {'tiers', 'nodes'})
  if not fine then found = {'failed', text_of_error(found)} end
  replies[#replies + 1], first = found, first + count
end
return replies
