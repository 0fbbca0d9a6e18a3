-- tiers/request.lua: take what is needed of every tier at once, or else wait, holding nothing; for
-- one request or for several of one Tiers object.
-- KEYS  1-12 the Tiers object (tiers/state.lua)
-- ARGV  1 now (s; empty: the server's clock)
--       2 the tiers' names, as the callers were made   3 and their values
--       4 heartbeat_max_interval (s)   5 ttl (s; "-": none)
--       6 "wait" or "try"; "wait N n,n,..." waits only while fewer than N others wait, and fewer
--       than n at each node, "-" being any number; followed by "shed S", only if it is expected to
--       be served within S seconds   7 "again" if they may have been requested before, else empty
--       8 owner: "!secret host pid label"   9 "due" to be told when the next check is due, else empty
--       10 "node|weight ..." in fair order, and "node=value ..." for nodes of tiers where each key has its own value; those in use keep theirs
--       11... in turn an acquisition id, which says what it needs (tiers/state.lua), and its path
-- Returns {"granted", number, token}
--         {"queued", ms until the next check is due, or -1}
--         {"busy", node, value, held, waiting}     only for "try"; nothing has changed
--         {"full", node, value, held, waiting, how many wait where no more may, when it would be
--          served (s) or "", 1 if that is too late, else 0}
--                                                  it may not wait; nothing has changed. In both, waiting
--                                                  is a text while the node is paused: "number ms", and the
--                                                  value of a rate is its text (tiers/state.lua)
--         {"refused", value, tier}                 it needs more than there is
--         {"conflict", tier or -1, its value}      in use with other tiers
--         {"closed", the reason if there is one}   for everybody, until tiers/reopen.lua
-- followed by messages for the caller; for several, {"each", one of these for each} with the
-- messages after the last.
-- Mirrors PathLedger.expire and serve, then PathLedger.request or try_request for each.
-- include tiers/at_rest.lua
-- include base/lists.lua

-- Grant one request of an object at rest if it fits: the reply, or nil if that is left to the rules.
function at_rest.request()
  local id, path, ttl, owner = ARGV[11], ARGV[12], ARGV[5], ARGV[8]
  if #ARGV ~= 12 or ARGV[7] ~= '' or string.find(id, '[*^]') or string.find(ARGV[10], '=', 1, true)
      or string.find(ARGV[6], 'shed', 1, true) then
    return nil
  end
  local read, interval = at_rest.read(ARGV[1], id), tonumber(ARGV[4])
  if not read or read.field or read.shape ~= ARGV[2] or read.declared ~= ARGV[3] or interval > read.longest
      or read.life_us < read.us + read.longest * 1000000 then
    return nil
  end
  local names, tiers = {}, 0
  for name in string.gmatch(path, '[^,]+') do names[#names + 1] = name end
  local records, held, top, value = redis.call('HMGET', KEYS[1], unpack(names)), nil, nil, nil
  for text in string.gmatch(read.values, '[^,]+') do
    tiers = tiers + 1
    held, top = at_rest.counts(records[tiers])
    value = tonumber(text)
    if not top or (value > 0 and held >= value) then return nil end
    if tiers < #names then at_rest.put_counts(read, names[tiers], held + 1, top) end
  end
  if tiers ~= #names then return nil end
  -- The lowest number that is free in the widest tier, which is the last.
  local widest, number, record, rest = names[tiers], top + 1, nil, nil
  if top > held then
    record = redis.call('ZRANGEBYLEX', KEYS[8], '[' .. widest .. ' ', '(' .. widest .. '!', 'LIMIT', '0', '1')[1]
    local low, high = string.match(record or '', ' (%d+)%-?(%d*)$')
    number = tonumber(low)
    if not number then return nil end
    high = tonumber(high) or number
    if high > number then
      rest = string.format('%s %016d', widest, number + 1) .. (high > number + 1 and '-' .. whole(high) or '')
    end
  end
  if value > 0 and number > value then return nil end
  at_rest.put_counts(read, widest, held + 1, math.max(top, number))
  local ticket, token = math.max(read.ticket + 1, read.us), math.max(read.token + 1, read.us)
  at_rest.put(read, '.ticket', whole(ticket))
  at_rest.put(read, '.token', whole(token))
  at_rest.put(read, id, ARGV[4] .. ' ' .. ttl .. ' ' .. whole(ticket) .. ' ' .. read.now_text .. ' ' .. whole(number)
              .. ' ' .. whole(token) .. ' ' .. path .. ' ' .. owner)
  local deadline = seconds(read.now + interval)
  if held == MANY - 1 then add_members(KEYS[2], held, {deadline, id}) else redis.call('ZADD', KEYS[2], deadline, id) end
  if held == 0 then at_rest.expire(read, KEYS[2]) end
  if rest then redis.call('ZADD', KEYS[8], '0', rest) end
  if record then redis.call('ZREM', KEYS[8], record) end
  if ttl ~= '-' then
    redis.call('ZADD', KEYS[4], seconds(read.now + tonumber(ttl)), id)
    at_rest.expire(read, KEYS[4])
    if not read.timed then at_rest.put(read, '.timed', '1') end
  end
  at_rest.save(read)
  return {'granted', number, token}
end

local granted = at_rest.request()
if granted then return granted end
-- include tiers/rules.lua
-- include tiers/estimate.lua
local shape, declared, interval_text, ttl, may_wait = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6] ~= 'try'
local again, owner, tell_due = ARGV[7] ~= '', ARGV[8], ARGV[9] ~= ''
local interval, first = tonumber(interval_text), 11

-- The fields of state that will be read, each once.
local function needed_fields()
  local fields, seen = {}, {}
  local function need(field)
    if not seen[field] then
      seen[field] = true
      fields[#fields + 1] = field
    end
  end
  for i = first, #ARGV, 2 do
    if again then need(ARGV[i]) end
    need('>' .. ARGV[i + 1])
    for _, name in ipairs(names_of(ARGV[i + 1])) do need(name) end
  end
  return fields
end

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

local function granted_before(id)
  local claim = again and redis.call('ZSCORE', keys.holders, id) and read_claim(id)
  if again and not widest_tier and get('$' .. id) then return {'granted', 0, token} end
  return claim and granted_reply(claim)
end

if open(1, ARGV[1], needed_fields()) then return redis.error_reply(repairs.REPLY) end
caller = client_of(ARGV[first])
if known['.closed'] then
  -- One that is requested again may have been granted before the close.
  return finish(each(function(id) return granted_before(id) or closed_reply() end))
end
-- A full server refuses newcomers here, before anything has changed (begin_though_full): once a write that takes no memory
-- has passed, such as PEXPIRE, it refuses none.
if not again then redis.call('ZADD', keys.holders, 'XX', 0, '') end
local is_new = known['.shape'] ~= shape or known['.declared'] ~= declared
local clash = is_new and agreement.declare(shape, declared)
if clash then return finish(each(function() return {'conflict', clash - 1, agreement.conflicting(clash)} end)) end
if interval > longest then
  longest = interval
  put('.interval', interval_text)
end
outlive(longest)
expire()
serve()

if string.find(ARGV[10], '=', 1, true) then
  for name, value in string.gmatch(ARGV[10], '([^%s=]+)=(%d+)') do
    local node = read_node(name)
    node.own = node.own or tonumber(value)
  end
end

-- How many wait where no more may wait: in total, or at a node; nil if one more may.
local bounds, patience = string.match(ARGV[6], '^wait (.+)$'), string.match(ARGV[6], ' shed (%S+)$')
local function overload(path_nodes)
  local most, each_most = string.match(bounds, '^(%S+) ?([%d,-]*)')
  if tonumber(most) then
    if pending then flush(keys.waiters) end
    local waiting = redis.call('ZCARD', keys.waiters)
    if waiting >= tonumber(most) then return waiting end
  end
  local tier = 0
  for text in string.gmatch(each_most, '[^,]+') do
    tier = tier + 1
    if tonumber(text) and path_nodes[tier].waiting >= tonumber(text) then return path_nodes[tier].waiting end
  end
end

if patience and not times_all(get('.hold')) then put('.hold', estimates.time_all(known['.hold'])) end
turns.weights = {}
if turns.by then
  for name, weight in string.gmatch(ARGV[10], '([^%s|]+)|(%S+)') do turns.weights[name] = tonumber(weight) end
end
function turns.weight_of(path) return turns.by and turns.weights[fair.key_of(path)] or 1 end

local deadline = seconds(now + interval)
local function request(id, path)
  if again then
    local granted = granted_before(id)
    if granted then return granted end
    if redis.call('ZSCORE', keys.waiters, id) and read_claim(id) then return {'queued', -1} end
  end
  local path_nodes, needs = nodes_of(path), needs_of(id)
  local tier, value = unfit(path_nodes, needs)
  if tier then return {'refused', value, tier} end
  local ticket = math.max(last_ticket + 1, now_us)
  local newcomer, first, parked_name = turns.head(turns.rank_text(id, ticket), path, id), parked_at(path)
  local lacking = lacks(path_nodes, needs, newcomer)
  local is_free = not lacking and not (first and turns.comes_before(first, newcomer))
    and not unfinished_on(path_nodes, newcomer)
  if not is_free and not may_wait then
    lacking = lacking or path_nodes[1]
    return {'busy', in_the_way(lacking)}
  end
  local waiting = not is_free and bounds and overload(path_nodes)
  if waiting or (patience and not is_free) then
    local expected = estimates.estimate(path, path_nodes, needs)
    local is_late = not waiting and expected and expected > (tonumber(patience) or math.huge)
    if waiting or is_late then
      lacking = lacking or path_nodes[1]
      for _, node in ipairs(is_late and path_nodes or {}) do waiting = math.max(waiting or 0, node.waiting) end
      local name, value_there, held, waiting_there = in_the_way(lacking)
      return {'full', name, value_there, held, waiting_there, waiting, estimates.estimate_text(expected), is_late and 1 or 0}
    end
  end
  last_ticket = ticket
  local claim = {
    before = interval_text .. ' ' .. ttl .. ' ' .. whole(ticket), ttl = ttl, ticket = ticket, granted = '-' .. now_text,
    numbers = '0', token = '0', path = path, owner = owner,
  }
  if is_free then
    if turns.waiting > 0 then turns.count_grant(ticket, path, needs, turns.weight_of(path)) end
    hold(id, claim, path_nodes, deadline)
    return granted_reply(claim)
  end
  wait(id, claim, path_nodes, deadline, newcomer, turns.weight_of(path), first, parked_name)
  if newcomer.rank and is_unfinished() == 1 then  -- it may be the head of its path now, and fit
    write_all()
    serve()
    write_behind()
    claim = read_claim(id)
    if claim and not waits(claim) then
      for i = #messages, 1, -1 do  -- the reply says it
        if string.sub(messages[i], 1, #id + 9) == 'granted ' .. id .. ' ' then table.remove(messages, i) end
      end
      return granted_reply(claim)
    end
  end
  return {'queued', -1}
end

local before = last_ticket
write_behind()
local replies = each(request)
write_all()
if last_ticket > before then put('.ticket', whole(last_ticket)) end
local due = (tell_due or again) and next_end()
for i = 2, #replies do
  if due and replies[i][1] == 'queued' then replies[i][2] = due end
end
return finish(replies)
