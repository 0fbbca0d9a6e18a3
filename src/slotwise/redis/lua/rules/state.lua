-- rules/state.lua: what is kept of a limit on the server, and how it is read and written. Who is
-- served, and when, is in rules/line.lua, of semaphores, and in rules/paths.lua, of tiers. Not a
-- script.
--
-- A node is "tier:key", a path its nodes with commas between, narrow to wide (_writing.py); neither
-- has a space in it. A semaphore has one path, "0:". Its keys, in this order in KEYS; those marked
-- with a star are documented:
--   state       hash  its fields are listed below
--   main      * zset  id -> deadline of its silence; an id of n slots is n members: id#2 ...
--   heartbeat * zset  id of a waiter -> deadline of its silence
--   ttl       * zset  id -> deadline of its ttl
--   waiting   * zset  id -> its ticket (s), less its head start
--   numbers     zset  "node number" or "node first-last", all with score 0: slot numbers below a
--                     node's top that are free
--   max       * str   the value, for statistics
-- A member of main or waiting that has no claim in state, and doesn't look like an id of ours, is a
-- claim of one slot by a client that speaks only the document (rules/line.lua).
--
-- Tiers have, with the same meaning, state, holders, waiters and ttls, then queue, numbers, and
--   queue       zset  "path rank id", all with score 0: the first of a path is its group's head
--   parked      zset  "node rank path id", likewise: the first of a node has the oldest head
--   unfinished  zset  nodes to be looked at, by the turn of the oldest head there
--   refills     zset  node with a rate -> when (us) there is enough for the oldest head there
--   cleanup     zset  node with a rate -> when (us) its bucket is full
--   passed      zset  the highest tickets of those who were granted while others waited, as members
--                     and scores
--   shares      zset  of fair order (rules/fair.lua)
--   taken0, taken1  hash  id -> "until path charges": what it took of rates, and until when (us)
--                     that can be corrected; each is written for some time, and then the other one,
--                     and expires as a whole (rules/rates.lua)
--
-- The fields of state:
--   node        "held waiting value kept top":
--                 held     how many slots are held
--                 waiting  how many wait whose path goes through it
--                 value    its own, after a resize; "~" and its value if each key of the tier has
--                          its own; else "-"
--                 kept     the ticket of the head that slots are kept for, with "*" and how many if
--                          not one, or "-"
--                 top      in the widest tier with slots, the highest number there has been
--               of a rate "0 waiting rate kept listed level at":
--                 rate     its own; else that of its tier: "-", or "~" and how often that had been
--                          resized
--                 listed   1 if it is in cleanup
--                 level    how many parts there were, at that time (us)
--   id          its claim, see read_claim
--   ">path"     "node rank id": where the group of a path is parked, and its head
--   "%node" and "&node"  how the value of an adaptive one moves (rules/adaptive.lua)
--   .shape .declared .accepted .values   the tiers (rules/agreement.lua)
--   .ticket .token  the highest there have been
--   .interval   the longest heartbeat_max_interval (s)
--   .life       until when (us) all of this is kept
--   .held .waits .timed .keys   how many members of main are ours, how many wait, how many have a
--               ttl, and how many groups are parked and other keys there are: by that a lost key is
--               noticed
--   .hold       "busy ended": the slot-seconds of recent holds, and how many slots those were;
--               "all " in front: holds are timed although nobody waits
--   .large      how many wait that need several slots of a node
--   .time       of fair order (rules/fair.lua)
--   .special    any of these is there, which most limits don't have:
--   .closed .reason   it is closed
--   .until      until when (us) all would be kept if it were not closed or paused
--   .pauses .paused_at   "node=until ..." (us), with its number for a whole tier; the last time of
--               the clock (us)
--   .frozen     "tier=value ...": adaptive tiers that are frozen as a whole
--   .looking    "tier node": the nodes after it have still to be looked at (rules/pauses.lua)
--   .rated      "tier number until rate ...": rates that tiers have had before (rules/rates.lua)
--
-- A rate is "gain/unit/burst/per": `gain` parts come back in every us, a unit is `unit` parts, and
-- a bucket has at most burst units; per is in us. All are exact: they are at most 2^53.
--
-- A limit that has lost a key, or has contents that our scripts did not write, is reset, not
-- repaired: see `guarded`.
-- include rules/base.lua
local CLOSED = 30 * 24 * 3600  -- how long (s) it stays closed after the last call that found it so
local keys = {}                -- those of the limit, by the names that tiers have
local first_key, key_count     -- where they begin in KEYS, and how many there are
local is_line                  -- whether it is a semaphore
local caller, own_ids          -- the loop client that calls, and how its ids begin
local pattern = ''             -- of the lists that tell foreign clients of their grants
local messages                 -- what stands behind the reply
local outbox                   -- what is published: channel, message, ...
local known, changed           -- fields of state that were read; those to be written
local nodes, moved             -- nodes that were read, taken apart; those that have changed
local nodes_by_path, names_by_path = nil, {}
local touched                  -- nodes that this call has freed slots of, to be looked at
local fresh                    -- keys that this call may have made
local rates, values            -- of tiers with a rate; the values
local value_texts              -- as text
local widest_tier              -- the last with slots, or nil
local settle_us                -- for how long (us) one that has ended can be corrected, at least
local last_ticket, last_token, longest, life_us
local counts                   -- what .held, .waits and .timed say
local ended_holds              -- how long (s) those were held that ended while somebody waited
local left                     -- how many claims this call may still grant, end or refuse
local renewed = 0              -- how many deadlines it renews: the more, the less else it does
local why_reset                -- why it was reset, if it was
-- Changes of sorted sets are collected: key -> member -> its score, or false to remove it; `added`:
-- keys that get members.
local pending, added
-- Functions, by file.
local slot_numbers, turns, pauses, adapting, buckets, fair, agreement = {}, {}, {}, {}, {}, {}, {}
local estimates, dues, line, paths = {}, {}, {}, {}
local queue                    -- line or paths

-- Have the functions of a table made when the first of them is needed: each that is made costs
-- every call, used or not.
local function made_when_needed(functions, make)
  setmetatable(functions, {__index = function(_, name)
    setmetatable(functions, nil)
    make()
    return functions[name]
  end})
end

local function damaged(why) error('DAMAGED ' .. why, 0) end

-- Remove keys without waiting until their memory is free, which takes milliseconds for very many
-- members.
local function unlink(...)
  local refused = redis.pcall('UNLINK', ...)
  if type(refused) == 'table' and refused.err then call('DEL', ...) end  -- this user may not
end

local function text_of_error(error)
  return type(error) == 'table' and error.err or tostring(error)
end

-- Call a function for one limit. If it meets a key that is lost, or of another type, or a record
-- that our scripts did not write, all keys of that limit are removed, and the function is called
-- again, on nothing: holders learn that they lost what they held by their next heartbeat, and
-- waiters queue again. Other limits never notice. Any other error goes on.
local DAMAGE = {'DAMAGED', 'WRONGTYPE', 'attempt to', 'bad argument', 'not a valid float',
  'not an integer'}
local function guarded(run, ...)
  why_reset = nil
  local fine, reply = pcall(run, ...)
  if fine then return reply end
  local why = text_of_error(reply)
  for _, sign in ipairs(DAMAGE) do
    if why:find(sign, 1, true) then
      unlink(unpack(KEYS, first_key, first_key + key_count - 1))
      why_reset = why:match('^[%w:@_ ]-DAMAGED (.*)$') or why
      return run(...)
    end
  end
  error(reply, 0)
end

-- ------------------------------------------------------------- sorted sets: written at the end,
-- some at a time

-- Call a command for a key, perhaps with one option, with as many arguments as there are, in calls
-- of bounded size. Pairs stay together.
local function call_in_chunks(arguments, command, key, option)
  for from = 1, #arguments, CHUNK do
    local to = math.min(from + CHUNK - 1, #arguments)
    if option then
      call(command, key, option, unpack(arguments, from, to))
    else
      call(command, key, unpack(arguments, from, to))
    end
  end
end

-- Write changes of a key: what there is to be written under each name, or false to remove it.
local function write_changes(key, changes, add, remove, name_first)
  local additions, removals, count, removed = {}, {}, 0, 0
  for name, text in pairs(changes) do
    if not text then
      removed = removed + 1
      removals[removed] = name
    else
      additions[count + 1], additions[count + 2] = name_first and name or text, name_first and text
        or name
      count = count + 2
    end
  end
  if count > 0 then call_in_chunks(additions, add, key) end
  if removed > 0 then call_in_chunks(removals, remove, key) end
end

local function flush(key)
  local changes = pending[key]
  if not changes then return key end
  pending[key], added[key] = nil, nil
  write_changes(key, changes, 'ZADD', 'ZREM', false)
  return key
end

local function changes_of(key)
  pending[key] = pending[key] or {}
  return pending[key]
end

local function zadd(key, score, member)
  changes_of(key)[member], added[key] = score, true
end

local function zrem(key, member) changes_of(key)[member] = false end

local function padded(ticket) return string.format('%016d', ticket) end

-- ------------------------------------------------------------- state: read once, written once

local function fetch(fields)
  for from = 1, #fields, CHUNK do
    local texts = call('HMGET', keys.state, unpack(fields, from,
      math.min(from + CHUNK - 1, #fields)))
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
    text = call('HGET', keys.state, field)
    known[field] = text
  end
  return text
end

local function put(field, text)  -- false forgets it
  known[field], changed[field] = text, text
end

local function number_in(field)
  local text = known[field]
  local number = tonumber(text or 0)
  if not (number and number >= 0 and number < 2^53) then
    damaged(field .. ' is ' .. tostring(text))
  end
  return number
end

local function read_values(text)
  values, rates, value_texts, widest_tier, settle_us = {}, {}, {}, nil, 60000000
  adapting.rules, adapting.least, adapting.frozen = {}, {}, {}
  for value in text:gmatch('[^,]+') do
    local tier = #value_texts + 1
    local rate = value:find('/', 1, true) and buckets.read(value) or nil
    value_texts[tier] = value
    values[tier] = rate and rate.burst or tonumber(value)
    if rate then
      rates[tier], settle_us = rate, math.max(settle_us, rate.per)
    else
      widest_tier = tier
      if not values[tier] then  -- min_max_start_...: it adapts
        local least, start = value:match('^(%d+)_%d+_(%d+)')
        if not start then damaged('a value is ' .. value) end
        values[tier], adapting.least[tier] = tonumber(start), tonumber(least)
        adapting.rules[tier] = value:gsub('_', ' ')
      elseif value:find('%D') or values[tier] > 2^53 then
        damaged('a value is ' .. value)
      end
    end
  end
  for tier, value in string.gmatch(known['.frozen'] or '', '(%d+)=(%S+)') do
    tier = tonumber(tier) + 1
    adapting.frozen[tier] = tonumber(value) or values[tier]  -- of nodes to come
  end
end

local read_node

-- Begin with the limit whose keys start at KEYS[first], and read some fields of its state.
local FACTS = {'.shape', '.declared', '.values', '.ticket', '.token', '.interval', '.life',
  '.held', '.waits', '.timed',
               '.keys', '.hold', '.large', '.time', '.special'}
local SPECIAL = {'.closed', '.reason', '.pauses', '.frozen', '.looking', '.rated'}
local function open(first, count, given_now, fields)
  first_key, key_count, is_line = first, count, count == 7
  queue = is_line and line or paths
  keys.state, keys.holders, keys.waiters, keys.ttls, keys.queue,
    keys.numbers = unpack(KEYS, first, first + 5)
  if is_line then
    keys.max = KEYS[first + 6]
  else
    keys.max, keys.parked, keys.unfinished, keys.refills, keys.cleanup = nil,
      unpack(KEYS, first + 6, first + 9)
    keys.passed, keys.shares = KEYS[first + 10], KEYS[first + 11]
  end
  set_clock(given_now)
  messages, outbox, known, changed, nodes, moved, fresh, touched = {}, {}, {}, {}, {}, {}, {}, {}
  pending, added, ended_holds, nodes_by_path = {}, {}, {}, {}
  counts = {held = 0, timed = 0, waits = 0, held_before = 0}
  left = math.max(math.floor(AT_ONCE * count / #KEYS) - math.floor(renewed / 25), 8)
  fields = fields or {}
  if is_line then fields[#fields + 1] = '0:' end
  for i = 1, #FACTS do fields[#fields + 1] = FACTS[i] end
  fetch(fields)
  if known['.special'] then
    fetch(SPECIAL)
  else
    for i = 1, #SPECIAL do known[SPECIAL[i]] = false end
  end
  if known['.shape'] and not (known['.declared'] and known['.values']) then
    damaged('its state is incomplete')
  end
  read_values(known['.values'] or '')
  local _, commas = string.gsub(known['.declared'] or '', ',', '')
  if known['.shape'] and commas + 1 ~= #value_texts then
    damaged('its tiers are ' .. known['.declared'])
  end
  last_ticket, last_token, longest, life_us = number_in('.ticket'), number_in('.token'),
    number_in('.interval'), number_in('.life')
  if math.max(last_ticket, last_token) > now_us + 10^14 then
    damaged('its last ticket or token is far in the future')
  end
  counts.held, counts.timed, counts.waits = number_in('.held'), number_in('.timed'),
    number_in('.waits')
  counts.held_before = call('ZCARD', keys.holders)
  pauses.ends = false
  if known['.pauses'] then pauses.read(known['.pauses']) end
  queue.open()
end

local function expire_with_the_others(key)
  local left_us = life_us - now_us
  -- the clock was set forward just now
  if left_us <= 0 then left_us = math.max(longest, 1) * 1000000 end
  call('PEXPIRE', key, math.max(math.ceil(left_us / 1000), 1))
end

-- Note that something is kept of this limit, by its first key: so it is found by those who look at
-- everything. If somebody damages the notes, they begin anew.
local function note_name()
  local names = ARGV[2]
  if names == '' then return end
  local function note()
    return redis.pcall('ZADD', names, 'GT', seconds(life_us / 1000000), KEYS[first_key])
  end
  local noted = note()
  if type(noted) == 'table' and noted.err:find('WRONGTYPE', 1, true) then
    redis.pcall('DEL', names)
    noted = note()
  end
  if type(noted) == 'table' then return end  -- it isn't on this node of a cluster any more
  local over = call('ZRANGEBYSCORE', names, '-inf', now_text, 'LIMIT', '0', '10')
  if over[1] then call('ZREM', names, unpack(over)) end
  local left_ms = math.ceil((life_us - now_us) / 1000)
  if call('PTTL', names) < left_ms then call('PEXPIRE', names, left_ms) end
end

-- Keep everything until `us`.
local function keep_until(us)
  life_us = us
  note_name()
  put('.life', whole(life_us))
  fresh[keys.state] = true
  for key = first_key, first_key + math.min(key_count, 12) - 1 do
    expire_with_the_others(KEYS[key])
  end
end

-- Keep everything for another `life` seconds. The life of a key is never shortened.
local function outlive(life)
  local until_us = known['.special'] and tonumber(get('.until'))
  if until_us and until_us < now_us + life * 1000000 then
    put('.until', whole(now_us + 2 * life * 1000000))
  end
  if life_us >= now_us + life * 1000000 then return end
  -- A little longer than asked for, so that most calls have nothing to do.
  keep_until(now_us + 2 * life * 1000000)
end

-- Keep everything until `us` because it is closed or paused, which may be undone.
local function keep_for_now(us)
  if life_us >= us then return end
  if not get('.until') then put('.until', whole(life_us)) end
  keep_until(us)
end

-- Keep the limit closed for 30 days after the last call that found it closed.
local function keep_closed()
  keep_for_now(now_us + CLOSED * 1000000)
end

-- ------------------------------------------------------------------------------- nodes

function read_node(name, tier)
  local node = nodes[name]
  if node then return node end
  tier = tier or tonumber(name:match('^%d+')) + 1
  -- There is room for eight fields, of which three are set when they are needed; a ninth would
  -- double the table. Setting one to nil takes its room too.
  node = {name = name, tier = tier, held = 0, waiting = 0, top = 0}
  nodes[name] = node
  -- In fair order there may be several keys at it, and then heads are found by their keys.
  if turns.by and tier ~= turns.by then node.is_by_key = true end
  local text = get(name)
  if text then
    local held, waiting, value, kept, top, level, at =
      text:match('^(%d+) (%d+) ([-~]?[%d/]*) (%S+) (%d+) ?(%-?%d*) ?(%d*)%f[=%z]')
    local own = tonumber(value) or 1
    if not held or own > 2^53 or own < (is_line and 1 or 0) or (rates[tier] and at == '') then
      damaged(name .. ' is ' .. text:sub(1, 40))
    end
    node.held, node.waiting, node.top = held + 0, waiting + 0, top + 0  -- cheaper than tonumber
    if value ~= '-' then
      node.value, node.own = tonumber(value), tonumber(value:match('^~(%d+)$'))
    end
    if kept ~= '-' then
      local ticket, slots = kept:match('^(%d+)%*?(%d*)$')
      node.kept, node.kept_slots = tonumber(ticket), tonumber(slots) or 1
    end
    if rates[tier] then
      node.own_rate, node.listed, node.level, node.at = buckets.read(value), top == '1', level + 0,
        at + 0
      node.rated = node.own or 0
    end
    local share_at = tier == turns.by and text:find('=', 1, true)
    if share_at then node.share = fair.read_share(text, share_at + 1) end
    if node.share and node.waiting == 0 then node.share = nil end
  end
  if adapting.frozen[tier] then node.value = node.value or adapting.frozen[tier] end
  if rates[tier] then
    local is_full = not node.level
    node.rate, node.at = node.own_rate or rates[tier], node.at or now_us
    node.level = node.level or node.rate.full
    if known['.rated'] and not node.own_rate then buckets.catch_up(node, is_full) end
  end
  return node
end

local function names_of(path)
  local names = names_by_path[path]
  if not names then
    names = {}
    for name in path:gmatch('[^,]+') do names[#names + 1] = name end
    names_by_path[path] = names
  end
  return names
end

local function nodes_of(path)
  local found = nodes_by_path[path]
  if found then return found end
  local names, unread = names_of(path), {}
  for tier = 1, #names do note_unread(names[tier], unread) end
  fetch(unread)
  found = {}
  for tier = 1, #names do found[tier] = nodes[names[tier]] or read_node(names[tier], tier) end
  nodes_by_path[path] = found
  return found
end

local function change(node) moved[node.name] = node end

-- How many members of main are not ours.
local function foreign() return is_line and read_node('0:').held - counts.held or 0 end

local function need_of(node, needs) return needs and needs[node.tier] or 1 end

local function value_of(node)
  if node.rate then return node.rate.burst end
  return node.value or node.own or values[node.tier] or 0
end

-- Whether this many slots are free, without those that are kept for heads other than the one with
-- `ticket`.
local function has_room(node, need, ticket)
  if pauses.ends and pauses.until_of(node) > now_us then return false end
  local kept = node.kept and node.kept ~= ticket and node.kept_slots or 0
  if node.rate then
    buckets.refill(node)
    return (need + kept) * node.rate.unit <= node.level
  end
  -- as value_of has it; it is asked for all the time
  local value = node.value or node.own or values[node.tier] or 0
  return value == 0 or node.held + kept + need <= value
end

local function kept_text(node)
  return node.kept_slots > 1 and whole(node.kept) .. '*' .. whole(node.kept_slots)
    or whole(node.kept)
end

-- ---------------------------------------------------------------- how long paths are held

-- Whether holds are timed although nobody waits.
local function times_all(text) return string.sub(text or '', 1, 4) == 'all ' end

-- Mirrors HoldTimes (slotwise/_ledger/estimates.py).
local function note_holds()
  if not ended_holds[1] then return end
  local all, busy, ended = string.match(get('.hold') or '', '^(%a* ?)(%S+) (%S+)$')
  busy, ended = tonumber(busy) or 0, tonumber(ended) or 0
  for i = 1, #ended_holds do
    local slots = ended_holds[i][2]
    busy, ended = busy + math.max(ended_holds[i][1], 0) * slots, ended + slots
    if ended > 32 then busy, ended = busy * 16 / ended, 16 end
  end
  put('.hold', string.format('%s%.6f %.6f', all or '', busy, ended))
  ended_holds = {}
end

-- ------------------------------------------------------------------------------ the end of a call

-- Write what has changed, and make sure that every key expires. A node about which nothing is known
-- costs nothing.
local function save()
  note_holds()
  for key in pairs(pending) do flush(key) end
  queue.save()
  for fact, field in pairs({held = '.held', timed = '.timed', waits = '.waits'}) do
    local text = counts[fact] > 0 and whole(counts[fact])
    if known[field] ~= text then put(field, text) end
  end
  if last_ticket > number_in('.ticket') then put('.ticket', whole(last_ticket)) end
  if last_token > number_in('.token') then put('.token', whole(last_token)) end
  local is_special = (known['.closed'] or known['.pauses'] or known['.frozen'] or known['.looking']
    or known['.rated'] or times_all(known['.hold'])) and '1' or false
  if known['.shape'] and is_special ~= known['.special'] then put('.special', is_special) end
  for name, node in pairs(moved) do
    if node.rate then
      local is_idle = node.waiting == 0 and not node.own_rate and not node.kept
        and node.level >= node.rate.full
                      and not node.share
      put(name, not is_idle and buckets.record(node)
        .. (node.share and fair.share_text(node.share) or ''))
    elseif node.held == 0 and node.waiting == 0 and not node.value and not node.kept
        and not node.share then
      put(name, false)
    else
      local kept = node.kept and kept_text(node) or '-'
      local value = node.value and whole(node.value) or node.own and '~' .. whole(node.own) or '-'
      local text = string.format('%d %d ' .. value .. ' ' .. kept .. ' %d', node.held,
        node.waiting, node.top)
      put(name, node.share and text .. fair.share_text(node.share) or text)
    end
  end
  if next(changed) and not known['.life'] then fresh[keys.state] = true end
  write_changes(keys.state, changed, 'HSET', 'HDEL', true)
  for key in pairs(fresh) do
    if call('PTTL', key) == -1 then expire_with_the_others(key) end
  end
  changed, moved, fresh = {}, {}, {}
  for i = 1, #outbox, 2 do call('PUBLISH', outbox[i], outbox[i + 1]) end
  outbox = {}
end

-- The last thing that a script does: write, and reply. The reply is followed by the messages for
-- the caller: "unfinished" among them if a call of heartbeat.lua has to serve the others, and
-- "reset why" if all of it was.
local function answer(reply)
  save()
  for i = 1, #messages do reply[#reply + 1] = messages[i] end
  if why_reset then reply[#reply + 1] = 'reset ' .. why_reset end
  if queue.is_unfinished() == 1 then reply[#reply + 1] = 'unfinished' end
  return reply
end

-- ------------------------------------------------------------------------------ claims

-- The claim of an id, in the field of state with that name:
--   interval ttl ticket granted numbers token path owner
--     interval  heartbeat_max_interval (s)
--     ttl       s, or "-"
--     ticket    its place in the queue
--     granted   when that was (s); while it waits, "-" and when that began (s)
--     numbers   of its slots, like "1-3,7"; "0" while it waits
--     token     the fencing token; "0" while it waits
--     path      its nodes; "*" behind it, and what it has really taken of each tier, if corrected
--     owner     "!secret host pid label" (see notify); "pid/grace" if it keeps its slots for some
--               seconds after a kick

-- The loop client that an id of slotwise's own client belongs to; its channel is slotwise:CLIENT.
local function client_of(id) return id:match('^sw%-([^-]+)%-') end

-- The claim of an id, taken apart; false if there is none. `before` is what stands before
-- `granted`.
local function read_claim(id)
  local text = id:sub(1, 3) == 'sw-' and get(id)
  if not text then return false end
  local before, interval, ttl, ticket, granted, its_numbers, token, path, owner_at =
    text:match('^((%S+) (%S+) (%d+)) (%-?[%d.]+) (%d[%d,-]*) (%d+) (0:%S*) ()')
  if not (before and tonumber(interval) and (ttl == '-' or tonumber(ttl))) then
    damaged('a claim is ' .. text:sub(1, 40))
  end
  local claim = {  -- eight fields: a ninth would double the table
    before = before, ttl = ttl, ticket = tonumber(ticket), granted = granted,
      numbers = its_numbers, token = token,
    path = path, owner = text:sub(owner_at),
  }
  if path:find('*', 1, true) then claim.path, claim.charges = path:match('^([^*]+)%*([%d.]+)$') end
  return claim
end

local function is_waiting(claim) return claim.granted:byte() == 45 end  -- "-"

local function write_claim(id, claim)
  local path = claim.charges and claim.path .. '*' .. claim.charges or claim.path
  put(id, claim.before .. ' ' .. claim.granted .. ' ' .. claim.numbers .. ' ' .. claim.token .. ' '
    .. path .. ' '
      .. claim.owner)
end

-- The lowest slot number of a claim, as text.
local function number_of(claim) return claim.numbers:match('^%d+') end

-- The message to somebody who waited.
local function granted_message(id, claim)
  return 'granted ' .. id .. ' ' .. number_of(claim) .. ' ' .. claim.token
end

-- Reply to somebody who has got it.
local function granted_reply(claim)
  return {'granted', tonumber(number_of(claim)), tonumber(claim.token),
    is_line and value_of(read_node('0:')) or nil}
end

-- A message to the process of an id, or into the reply if that is the caller's own. Anybody may
-- publish on a channel: the owner in a claim begins with "!" and a secret of the process that made
-- it, so the script proves to that process, and to nobody else, that it has seen the claim. A
-- listener learns nothing that would prove another message.
local function notify(id, owner, message)
  own_ids = own_ids or 'sw-' .. (caller or '') .. '-'
  local client = id:sub(1, #own_ids) == own_ids and caller or client_of(id)
  if client == caller then
    messages[#messages + 1] = message
  elseif client then
    local secret = string.match(owner or '', '^!(%x+) ')
    if secret then message = message .. ' ' .. redis.sha1hex(message .. ' ' .. secret) end
    outbox[#outbox + 1], outbox[#outbox + 2] = 'slotwise:' .. client, message
  end
end

-- The value of a node, for replies to somebody who got nothing of it; of a rate, its text.
local function value_text(node) return node.rate and node.rate.text or value_of(node) end

-- How many slots are held; of a rate, how much of its burst is taken.
local function held_of(node)
  if not node.rate then return node.held end
  buckets.refill(node)
  return node.rate.burst - math.floor(node.level / node.rate.unit)
end

-- A node that was in the way, for replies: its name, value, how many slots of it are held, and how
-- many wait.
local function in_the_way(node)
  return node.name, value_text(node), held_of(node), pauses.ends and pauses.waiting_text(node)
    or node.waiting
end

local function busy_reply(node)
  local name, value, held, waiting = in_the_way(node)
  return {'busy', name, value, held, waiting, is_line and line.oldest_holders() or nil}
end

-- The tier that can never give a path what it needs, and its value; nil if there is none.
local function unfit(path_nodes, needs)
  for _, node in ipairs(needs and path_nodes or {}) do
    local value = adapting.least[node.tier] or value_of(node)  -- it may fall to that
    if value > 0 and need_of(node, needs) > value then return node.tier - 1, value end
  end
end

-- Begin to write on a server that may be at its maxmemory; returns whether it is. Such a server
-- refuses a script's first write if that may take memory, and no later one. Heartbeats and releases
-- take next to none, so they begin with a write that is never refused. Neither of the two writes
-- here changes anything.
local function begin_though_full()
  local refused = redis.pcall('ZADD', keys.holders, 'XX', '0', '')
  if type(refused) ~= 'table' or not string.find(refused.err or '', 'OOM', 1, true) then
    return false
  end
  redis.pcall('ZREM', keys.holders, '')
  return true
end

-- The reply to a refused request: "closed", and the reason if there is one.
local function closed_reply()
  keep_closed()
  save()
  return {'closed', known['.reason'] or nil}
end

-- ------------------------------------------------------------------------ holding

-- Turn a claim, whose nodes all have room for it, into a holder until `deadline`.
local function hold(id, claim, path_nodes, deadline)
  if foreign() < 0 then line.mend() end  -- or numbers would go beyond the value
  local widest, needs = path_nodes[widest_tier], needs_of(id)
  local need = widest and needs and needs[widest_tier] or 1
  if widest then slot_numbers.allot(claim, widest, need) end
  for at = 1, #path_nodes do
    local node, its_need = path_nodes[at], needs and needs[at] or 1
    if node.rate then buckets.charge(node, its_need) else node.held = node.held + its_need end
    moved[node.name] = node
  end
  last_token = math.max(last_token + 1, now_us)
  claim.token, claim.granted = whole(last_token), now_text
  if not widest then  -- of rates alone nothing is held
    put(id, false)
    return
  end
  write_claim(id, claim)
  zadd(keys.holders, deadline, id)
  fresh[keys.holders] = true
  counts.held = counts.held + (is_line and need or 1)
  for i = 2, is_line and need or 1 do zadd(keys.holders, deadline, id .. '#' .. i) end
  if claim.ttl ~= '-' then
    zadd(keys.ttls, seconds(now + tonumber(claim.ttl)), id)
    fresh[keys.ttls], counts.timed = true, counts.timed + 1
  end
end

-- End a hold, if there is one; grants nothing. Returns how many slots it had of the widest tier.
-- The sample is for adaptive tiers.
local function release(id, sample)
  local claim = read_claim(id)
  if not claim or is_waiting(claim) then return is_line and line.release_foreign(id, claim) or 0 end
  local needs, is_there = needs_of(id), true
  local need = needs and needs[widest_tier] or 1
  if is_line then is_there = line.remove(id) > 0 else zrem(keys.holders, id) end
  counts.held = counts.held - (is_line and need or 1)
  put(id, false)
  if claim.ttl ~= '-' then
    counts.timed = counts.timed - call('ZREM', flush(keys.ttls), id)
  end
  local path_nodes, is_waited_for = nodes_of(claim.path), false
  for at = 1, #path_nodes do
    local node = path_nodes[at]
    if not node.rate then
      if not is_line then node.held = node.held - need_of(node, needs) end
      if node.held < 0 then damaged('more slots come back than are held') end
      change(node)
      if node.waiting > 0 then touched[node.name] = node end
    end
    is_waited_for = is_waited_for or node.waiting > 0
  end
  if next(rates) then buckets.remember(id, claim.path, claim.charges) end
  -- The length of the hold counts if somebody waits.
  if is_waited_for or times_all(known['.hold']) then
    ended_holds[#ended_holds + 1] = {now - (tonumber(claim.granted) or now), is_line and need or 1}
  end
  if next(adapting.rules) then adapting.count_end(path_nodes, claim, needs, sample) end
  slot_numbers.free(path_nodes[widest_tier], claim.numbers)
  return is_there and need or 0
end

-- include rules/numbers.lua
-- include rules/turns.lua
-- include rules/line.lua
-- include rules/paths.lua
-- include rules/ending.lua

-- What is needed only now and then.
-- include rules/agreement.lua
-- include rules/rates.lua
-- include rules/pauses.lua
-- include rules/adaptive.lua
