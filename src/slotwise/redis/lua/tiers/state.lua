-- tiers/state.lua: what is kept of a Tiers object on the server, and how it is read and written.
-- Who is served, and when, is in tiers/rules.lua. Not a script.
--
-- One object is twelve keys, in this order in KEYS. A node is "tier:key", a path its nodes with
-- commas between, narrow to wide (_path_keys.py); neither has a space in it.
--   state       hash  its fields are listed below
--   holders     zset  id -> deadline of its silence
--   waiters     zset  id -> deadline of its silence
--   ttls        zset  id -> deadline of its ttl
--   queue       zset  "path ticket id", all with score 0: sorted, so that the first of a path
--                     is the head of its group
--   parked      zset  "node ticket path id", likewise: the first of a node has the oldest head
--   unfinished  zset  nodes to be looked at, by the ticket of the oldest head there
--   numbers     zset  "node number" or "node first-last", likewise: slot numbers below a node's
--                     top that are free
--   refills     zset  node with a rate -> when (us) there is enough for the oldest head parked there
--   cleanup     zset  "b node" -> when (us) its bucket is full; "e id" -> until when (us) it can be corrected
--   passed      zset  the highest tickets of those who were granted while others waited, as members and scores
--   shares      zset  of fair order (tiers/fair.lua)
--
-- The fields of state:
--   node        "held waiting value kept top":
--                 held     how many slots are held
--                 waiting  how many wait whose path goes through it
--                 value    its own, after a resize; "~" and its value if each key of the tier has its own; else "-"
--                 kept     the ticket of the head that slots are kept for, with "*" and how many if not one, or "-"
--                 top      in the widest tier, the highest slot number there has been
--               of a rate "0 waiting rate kept listed level at":
--                 rate     its own; "~" and a rate if its tier has that too, or soon; else "-"
--                 listed   1 if it is in cleanup
--                 level    how many parts there were, at that time (us)
--   id          its claim (base/claim.lua), with the path in front of the owner
--   "$id"       "until path charges": what one that has ended took of rates, or one that holds if that was corrected
--   ">path"     "node ticket id": where the group of a path is parked, and its head
--   "%node" and "&node"  how the value of an adaptive one moves (tiers/adaptive.lua)
--   .shape .declared .accepted .values .frozen   the tiers (tiers/agreement.lua, tiers/adaptive.lua)
--   .token .ticket .interval .timed   the highest, the longest; whether there was a ttl
--   .hold       how long paths are held (base/hold_times.lua)
--   .large      how many wait that need several slots of a node
--   .closed .reason .until   it is closed; until when (us) all would have been kept if it were not
--   .pauses     "node=until ..." (us), with its number for a whole tier: nothing there has room before that
--   .paused_at  the last time of the clock (us) while that was so
--   .life       until when (us) all of this is kept
--   .keys       how many of the other keys there are
--   .suspect    something did not fit: all is rebuilt by the next calls; how far that has come (tiers/repair.lua)
--   .swept      how far the search for such things has come, and when the next begins
--   .grace      until when (s) nobody is silent for too long: something was rebuilt, in very many calls
--   .blocked    until when (s) nothing is granted: state was lost, and those in holders don't know yet (tiers/loss.lua)
--   .unaware    how far they have been told to check
--   .looking    "tier node": the nodes after it have still to be looked at (tiers/pauses.lua)
--   .rating     "tier rate place": the buckets of a tier are given another rate (tiers/rates.lua)
--   .time       of fair order (tiers/fair.lua)
--
-- A rate is "gain/unit/burst/per": `gain` parts come back in every us, a unit is `unit` parts, and
-- a bucket has at most burst units; per is in us. All are exact: they are below 2^53.
-- An id that needs other than one slot of each node says how many at its end, narrow to wide: "*2.1.3".
-- Counts are useless without the claims, so all keys expire together. A lost key is rebuilt from
-- the claims; if state itself is lost, all claims are over.
-- include base/base.lua
-- include base/claim_in_full.lua
-- include base/proof.lua
-- include base/hold_times.lua
-- include base/lists.lua
AT_ONCE, PAGE, SUSPECTED = 30, 250, 200  -- a path costs more than one slot: it has several nodes
local keys = {}               -- those of the object, by the names above
local caller, own_ids         -- the loop client that calls, and how its ids begin
local messages                -- what stands behind its reply
local known, changed          -- fields of state that were read; those to be written
local nodes, moved            -- nodes that were read, taken apart; those that have changed
local nodes_by_path           -- those of paths that were asked for
local names_by_path = {}      -- their names
local touched                 -- nodes that this call has freed slots of, to be looked at
local fresh                   -- keys that this call may have made
local rates, value_texts      -- of tiers with a rate; the values as text
local widest_tier             -- the last with slots, or nil
local settle_us               -- for how long (us) one that has ended can be corrected
local values, token, last_ticket, longest, life_us, blocked_until
-- What is written once, at the end: .token, the one that is written, and .held_for, how long (s) those were held that have
-- ended while somebody waited; .has_many, whether holders has become many.
local unwritten = {}
-- Of pauses (tiers/pauses.lua): until when (us) nodes are paused, or whole tiers, by their numbers; false: none is.
local pauses = {ends = false}
-- What the order of the waiters depends on: the keys passed and shares, how many wait (waiting),
-- and the tickets of those that this call has granted while others waited (passing).
local turns = {}
-- Of rates that somebody waits for: .told, by node, the id of its first head and when (us) there is enough for it,
-- if this call has changed that; .moved, the nodes whose heads may be others now.
local dues = {}
-- Of adaptive tiers (tiers/adaptive.lua): their rules, the least they may fall to, and what they are frozen at.
local adapting = {rules = {}, least = {}, frozen = {}}
local buckets, fair, losses, agreement = {}, {}, {}, {}  -- functions: of rates.lua, fair.lua, loss.lua and agreement.lua
local PATIENCE = 100
local first_key
local save_numbers            -- tiers/numbers.lua: write which are free

-- Changes of sorted sets are collected while a call makes many of a kind: key -> member -> its
-- score, or false to remove it. Nil when they are written at once.
local pending
-- While serve() serves: the nodes to be looked at first, by turn and name, the next one last; whether it is known that no
-- node has to be looked at; nodes whose heads have changed, and may not be written yet.
local work, is_finished, reparked

-- Write changes of a key: what there is to be written under each name, or false to remove it.
local function write_changes(key, changes, add, remove, name_first)
  local additions, removals, added, removed = {}, {}, 0, 0
  for name, text in pairs(changes) do
    if not text then
      removed = removed + 1
      removals[removed] = name
    else
      additions[added + 1], additions[added + 2] = name_first and name or text, name_first and text or name
      added = added + 2
    end
  end
  call_in_chunks(additions, add, key)
  call_in_chunks(removals, remove, key)
end

local function flush(key)
  local becomes_many = key == keys.holders and unwritten.has_many
  if becomes_many then redis.call('ZADD', key, '0', LONG) end
  write_changes(key, pending[key], 'ZADD', 'ZREM', false)
  if becomes_many then
    redis.call('ZREM', key, LONG)
    unwritten.has_many = false
  end
  pending[key] = {}
end

local function write_behind()
  pending = {[keys.holders] = {}, [keys.waiters] = {}, [keys.ttls] = {}, [keys.queue] = {}, [keys.parked] = {}}
end

local function write_all()
  for key in pairs(pending) do flush(key) end
  pending = nil
end

local function zadd(key, score, member)
  if pending then pending[key][member] = score else redis.call('ZADD', key, score, member) end
end

local function zrem(key, member)
  if pending then pending[key][member] = false else redis.call('ZREM', key, member) end
end

local function padded(ticket) return string.format('%016d', ticket) end

-- ------------------------------------------------------------- state: read once, written once

local function fetch(fields)
  for from = 1, #fields, CHUNK do
    local texts = redis.call('HMGET', keys.state, unpack(fields, from, math.min(from + CHUNK - 1, #fields)))
    for i = 1, #texts do known[fields[from + i - 1]] = texts[i] end
  end
end

-- Add a field to those to be fetched, unless it was read, or is among them.
local function note_unread(field, unread)
  if known[field] == nil then
    known[field] = false
    unread[#unread + 1] = field
  end
end

local function get(field)
  local text = known[field]
  if text == nil then
    text = redis.call('HGET', keys.state, field)
    known[field] = text
  end
  return text
end

local function put(field, text)  -- false forgets it
  known[field], changed[field] = text, text
end

local function read_values(text)
  values, rates, value_texts, widest_tier, settle_us = {}, {}, {}, nil, 60000000
  adapting.rules, adapting.least, adapting.frozen = {}, {}, {}
  for value in string.gmatch(text, '[^,]+') do
    local rate = string.find(value, '/', 1, true) and buckets.read(value) or nil
    value_texts[#value_texts + 1] = value
    values[#value_texts] = rate and rate.burst or tonumber(value)
    if rate then
      rates[#value_texts], settle_us = rate, math.max(settle_us, rate.per)
    else
      widest_tier = #value_texts
      if not values[widest_tier] then  -- min_max_start_...: it adapts
        local least, start = string.match(value, '^(%d+)_%d+_(%d+)')
        values[widest_tier], adapting.least[widest_tier] = tonumber(start), tonumber(least)
        adapting.rules[widest_tier] = start and string.gsub(value, '_', ' ') or nil
      end
    end
  end
  for tier, value in string.gmatch(known and known['.frozen'] or '', '(%d+)=(%S+)') do
    tier = tonumber(tier) + 1
    adapting.frozen[tier] = tonumber(value) or values[tier]  -- of nodes to come
  end
end

local function count_keys()  -- besides state
  return redis.call('EXISTS', unpack(KEYS, first_key + 1, first_key + 11))
end

-- Begin with the object whose keys start at KEYS[first], and read some fields of its state. Returns true if all that this
-- call may do is a part of a repair.
local function open(first, given_now, fields)
  first_key = first
  keys.state, keys.holders, keys.waiters, keys.ttls = unpack(KEYS, first, first + 3)
  keys.queue, keys.parked, keys.unfinished, keys.numbers = unpack(KEYS, first + 4, first + 7)
  keys.refills, keys.cleanup, keys.passed, keys.shares = unpack(KEYS, first + 8, first + 11)
  turns.passing = {}
  set_clock(given_now)
  messages, known, changed, nodes, moved, fresh, touched = {}, {}, {}, {}, {}, {}, {}
  dues.told, dues.moved = {}, {}
  pending, work, is_finished, reparked = nil, nil, false, {}  -- all of another object that has failed
  repairs.is_under_way, turns.is_expiring, turns.left, turns.renewed = false, false, nil, 0
  nodes_by_path = {}
  fields = fields or {}
  for _, fact in ipairs({'.shape', '.declared', '.values', '.token', '.ticket', '.interval', '.timed',
                         '.life', '.closed', '.reason', '.keys', '.blocked', '.large', '.time', '.accepted',
                         '.suspect', '.swept', '.hold', '.frozen', '.pauses', '.unaware',
                         '.looking', '.grace', '.rating'}) do
    fields[#fields + 1] = fact
  end
  fetch(fields)
  read_values(known['.values'] or '')
  pauses.ends = false
  if known['.pauses'] then pauses.read(known['.pauses']) end
  turns.read(known['.shape'])
  token, last_ticket = tonumber(known['.token'] or 0) or 0, tonumber(known['.ticket'] or 0) or 0
  unwritten.token, unwritten.held_for, unwritten.has_many = token, {}, false
  longest, life_us = tonumber(known['.interval'] or 0) or 0, tonumber(known['.life'] or 0) or 0
  if not (longest < 2^31) then longest = 0 end  -- garbage, or not a number at all
  if not (life_us < 2^53) then life_us = 0 end
  -- Fails here if one was damaged: a grant that fails later would be half done, and announced.
  turns.waiting = redis.call('ZCARD', keys.queue)
  redis.call('ZCARD', keys.parked)
  local key_count = count_keys()
  if known['.shape'] and not (known['.declared'] and known['.values'] and known['.accepted']) then losses.forget_state() end
  if not known['.shape'] and key_count > 0 and (tonumber(known['.blocked']) or 0) <= now then losses.forget_claims() end
  blocked_until = tonumber(known['.blocked']) or 0
  if blocked_until > now and known['.unaware'] then losses.warn_unaware() end
  local is_over = known['.blocked'] and blocked_until <= now
  if is_over then
    put('.blocked', false)
    put('.unaware', false)
  end
  local is_whole = key_count == 0 or tonumber(known['.ticket']) and longest > 0
  local is_changed = is_over or not is_whole or key_count ~= (tonumber(known['.keys']) or 0)
  if known['.shape'] and (is_changed or known['.suspect']) and repairs.rebuild(is_changed) then return true end
  if known['.rating'] then return buckets.go_on_changing_rates() end
end

local function expire_with_the_others(key)
  local left_us = life_us - now_us
  if left_us <= 0 then left_us = longest * 1000000 end  -- the clock was set forward just now
  redis.call('PEXPIRE', key, math.max(math.ceil(left_us / 1000), 1))
end

-- Keep everything until `us`.
local function keep_until(us)
  life_us = us
  put('.life', whole(life_us))
  fresh[keys.state] = true
  for key = first_key, first_key + 11 do expire_with_the_others(KEYS[key]) end
end

-- Keep everything for another `life` seconds. The life of a key is never shortened.
local function outlive(life)
  if life_us >= now_us + life * 1000000 then return end
  -- A little longer than asked for, so that most calls have nothing to do.
  keep_until(now_us + 2 * life * 1000000)
end

-- Keep the tiers closed for 30 days after the last call that found it closed.
local function keep_closed()
  keep_until(math.max(life_us, now_us + CLOSED * 1000000))
end

-- ------------------------------------------------------------------------------- nodes

local function read_node(name, tier)
  local node = nodes[name]
  if node then return node end
  tier = tier or tonumber(string.match(name, '^%d+')) + 1
  -- There is room for eight fields, of which three are set when they are needed; a ninth would double the table. Setting
  -- one to nil takes its room too.
  node = {name = name, tier = tier, held = 0, waiting = 0, top = 0}
  nodes[name] = node
  -- In fair order there may be several keys at it, and then heads are found by their keys.
  if turns.by and tier ~= turns.by then node.is_by_key = true end
  local text = get(name) or ''
  local held, waiting, top = string.match(text, '^(%d+) (%d+) %- %- (%d+)%f[=%z]')
  local share_at = tier == turns.by and string.find(text, '=', 1, true)
  if share_at then node.share = fair.read_share(text, share_at + 1) end
  if held and not rates[tier] then  -- as most of them are
    node.held, node.waiting, node.top = held + 0, waiting + 0, top + 0  -- cheaper than tonumber
    if adapting.frozen[tier] then node.value = adapting.frozen[tier] end
    if node.share and node.waiting == 0 and not repairs.is_under_way then node.share = nil end
    return node
  end
  local value, kept, level, at
  held, waiting, value, kept, top, level, at = string.match(text, '^(%S+) (%S+) (%S+) (%S+) ([^%s=]+) ?([^%s=]*) ?([^%s=]*)')
  if held then
    node.held, node.waiting, node.top = tonumber(held) or 0, tonumber(waiting) or 0, tonumber(top) or 0
    node.value, node.own = tonumber(value), tonumber(string.match(value, '^~(%d+)$'))
    local ticket, slots = string.match(kept, '^(%d+)%*?(%d*)$')
    if ticket then node.kept, node.kept_slots = tonumber(ticket), tonumber(slots) or 1 end
    if rates[tier] then
      node.own_rate, node.listed, node.level, node.at = buckets.read(value), top == '1', tonumber(level), tonumber(at)
      node.rated = string.match(value, '^~(.*/.*)$')
    end
  end
  if node.share and node.waiting == 0 and not repairs.is_under_way then node.share = nil end
  node.value = node.value or adapting.frozen[tier]
  if rates[tier] then
    node.rate = node.own_rate or node.rated and buckets.read(node.rated) or rates[tier]
    node.level, node.at = node.level or node.rate.full, node.at or now_us
  end
  return node
end

local function names_of(path)
  local names = names_by_path[path]
  if not names then
    names = {}
    for name in string.gmatch(path, '[^,]+') do names[#names + 1] = name end
    names_by_path[path] = names
  end
  return names
end

local function note_unread_names(path, unread)
  local names = not nodes_by_path[path] and names_of(path) or {}
  for at = 1, #names do note_unread(names[at], unread) end
end

-- Read the nodes of some paths at once.
local function fetch_paths(paths)
  local unread = {}
  for i = 1, #paths do note_unread_names(paths[i], unread) end
  fetch(unread)
end

local function nodes_of(path)
  local found = nodes_by_path[path]
  if found then return found end
  local names = names_of(path)
  for tier = 1, #names do
    if known[names[tier]] == nil then
      fetch_paths({path})
      break
    end
  end
  found = {}
  for tier = 1, #names do found[tier] = nodes[names[tier]] or read_node(names[tier], tier) end
  nodes_by_path[path] = found
  return found
end

local function change(node) moved[node.name] = node end

-- What an id needs of each tier, or nil for one slot of each.
local function needs_of(id)
  if not string.find(id, '*', 1, true) then return nil end
  local needs = {}
  for need in string.gmatch(string.match(id, '%*([%d.]*)') or '', '%d+') do needs[#needs + 1] = tonumber(need) end
  return needs
end

local function need_of(node, needs) return needs and needs[node.tier] or 1 end

local function value_of(node)
  if node.rate then return node.rate.burst end
  return node.value or node.own or values[node.tier] or 0
end

local function kept_text(node)
  return node.kept_slots > 1 and whole(node.kept) .. '*' .. whole(node.kept_slots) or whole(node.kept)
end

function unwritten.note_ends()
  if not unwritten.held_for[1] then return end
  put('.hold', note_holds(get('.hold'), unwritten.held_for, 1))
  unwritten.held_for = {}
end

-- Write what has changed, and make sure that every key expires. A node about which nothing is known
-- costs nothing.
local function save()
  for _, node in pairs(moved) do
    if node.tier == widest_tier then save_numbers(node) end
  end
  turns.flush()
  unwritten.note_ends()
  if token > unwritten.token then
    put('.token', whole(token))
    unwritten.token = token
  end
  if turns.by then fair.save() end
  if next(rates) then buckets.tell_due() end
  local key_count = known['.shape'] and whole(count_keys())
  if key_count and known['.keys'] ~= key_count then put('.keys', key_count) end
  for name, node in pairs(moved) do
    if node.rate then
      local is_idle = node.waiting == 0 and not node.own_rate and not node.kept and node.level >= node.rate.full
                      and not node.share
      put(name, not is_idle and buckets.record(node) .. (node.share and fair.share_text(node.share) or ''))
    elseif node.held == 0 and node.waiting == 0 and not node.value and not node.kept and not node.share
           and not (repairs.is_under_way and (node.own or node.top > 0)) then
      put(name, false)
    else
      local kept = node.kept and kept_text(node) or '-'
      local value = node.value and whole(node.value) or node.own and '~' .. whole(node.own) or '-'
      local text = string.format('%d %d ' .. value .. ' ' .. kept .. ' %d', node.held, node.waiting, node.top)
      put(name, node.share and text .. fair.share_text(node.share) or text)
    end
  end
  write_changes(keys.state, changed, 'HSET', 'HDEL', true)
  for key in pairs(fresh) do
    if redis.call('PTTL', key) == -1 then expire_with_the_others(key) end
  end
  changed, moved, fresh = {}, {}, {}
end

-- ------------------------------------------------------------------------------ claims

local function read_claim(id) return parse_path_claim(get(id) or '') end

-- Reply to somebody who has got it.
local function granted_reply(claim) return {'granted', tonumber(number_of(claim)), tonumber(claim.token)} end

local function waits(claim) return claim.granted == '0' or string.byte(claim.granted) == 45 end

local function write_claim(id, claim)
  put(id, path_claim_text(claim.before, claim.granted, claim.numbers, claim.token, claim.path, claim.owner))
end

-- A message to the process of an id, or into the reply if that is the caller's own. `owner` is
-- that of its claim.
local function notify(id, owner, message)
  own_ids = own_ids or 'sw-' .. (caller or '') .. '-'
  local client = string.sub(id, 1, #own_ids) == own_ids and caller or client_of(id)
  if client == caller then
    messages[#messages + 1] = message
  elseif client then
    redis.call('PUBLISH', 'slotwise:' .. client, proved(message, owner))
  end
end

-- The reply to a refused request: "closed", and the reason if there is one.
local function closed_reply()
  keep_closed()
  save()
  return {'closed', known['.reason'] or nil}
end
