-- tiers/fair.lua: turns: who of those who wait comes before whom. PathQueue's and FairOrder's part of it
-- (slotwise/_ledger/fair.py; the rule is 9 in slotwise/_ledger/paths.py). Not a script.
--
-- Without fair order a turn is the rank of a head: its ticket less its head start, which an id says at its
-- end: "^microseconds". In fair order the tag of its key comes before that. All numbers are computed by the same
-- steps as in Python, and kept with 17 digits, so that they are the same.
--   state   "=node" -> "tag weight node*count,..." of a key that somebody waits for, with the nodes of other tiers
--           where groups of it are parked, and how many; .time, the tag of the latest grant
--   shares  zset  node -> the tag of a key that nobody waits for, if it is after .time
--   parked  zset  has two kinds of records, beside each other:
--             "node!key turn path id"  as without fair order, but by key
--             "node tag turn key"      the tag in hexadecimal digits that sort like the number. There is one
--             for each key with somebody parked at a node, and it is not after its turn; some are stale, and
--             corrected when they come to the front. So a grant costs nothing for those who are not looked at.

do  -- a script has room for 200 local names

-- As text that sorts like the number, which is 0 or more.
local function hex(number)
  return string.format('%08x%08x', struct.unpack('>I4I4', struct.pack('>d', number)))
end

-- The tiers of fair order, by the marks that tiers have in .shape.
function turns.read(shape)
  local tier = 0
  turns.by, turns.cost, turns.names, turns.shares_of, turns.version = nil, nil, {}, {}, 0
  for name in string.gmatch(shape or '', '[^,]+') do
    tier = tier + 1
    if string.find(name, '=', 1, true) then turns.by = tier end
    if string.find(name, '+', 1, true) then turns.cost = tier end
  end
  turns.time = tonumber(known['.time']) or 0
end

-- The node of the key that takes turns.
function turns.key_of(path)
  local name = turns.names[path]
  if not name then
    name = names_of(path)[turns.by]
    turns.names[path] = name
  end
  return name
end

-- Tag and weight of a key that somebody waits for, or nil.
function turns.share(key)
  local share = turns.shares_of[key]
  if share == nil then
    local tag, weight, at = string.match(get('=' .. key) or '', '^(%S+) (%S+) (%S*)$')
    share = tonumber(tag) and {tag = tonumber(tag), weight = tonumber(weight) or 1, nodes = {}} or false
    for name, count in string.gmatch(at or '', '([^,*]+)%*(%d+)') do share.nodes[name] = tonumber(count) end
    turns.shares_of[key] = share
  end
  return share or nil
end

local function put_share(key, share)
  turns.shares_of[key] = share or false
  if not share then
    put('=' .. key, false)
    return
  end
  local at = {}
  for name, count in pairs(share.nodes) do at[#at + 1] = name .. '*' .. whole(count) end
  put('=' .. key, string.format('%.17g %.17g %s', share.tag, share.weight, table.concat(at, ',')))
end

-- The tag of the next request of a key.
function turns.tag_of(key)
  local share = turns.share(key)
  return share and share.tag or math.max(turns.time, tonumber(redis.call('ZSCORE', turns.shares, key)) or 0)
end

-- Somebody begins to wait for a key; `is_first` if nobody did.
function turns.enter(key, weight, is_first)
  local share = turns.share(key)
  if not share or is_first then
    share = {tag = turns.tag_of(key), weight = weight, nodes = {}}
    redis.call('ZREM', turns.shares, key)
  end
  share.weight = weight  -- who asked last knows it best
  put_share(key, share)
end

local function remember_tag(key, tag)
  if tag > turns.time then
    redis.call('ZADD', turns.shares, string.format('%.17g', tag), key)
    fresh[turns.shares] = true
  end
end

-- Nobody waits for a key any more.
function turns.leave(key)
  local share = turns.share(key)
  if not share then return end
  put_share(key, nil)
  remember_tag(key, share.tag)
end

-- A group is parked at a node (1), or not any more (-1).
function turns.move(path, name, by)
  if tonumber(string.match(name, '^%d+')) + 1 == turns.by then return end
  local key = turns.key_of(path)
  local share = turns.share(key)
  if not share then return end
  local count = (share.nodes[name] or 0) + by
  share.nodes[name] = count > 0 and count or nil
  put_share(key, share)
end

-- Note a grant while somebody waits; `weight` is a newcomer's.
function turns.count_grant(ticket, path, needs, weight)
  turns.passing[#turns.passing + 1] = ticket
  if not turns.by then return end
  local key, tier = turns.key_of(path), turns.cost or widest_tier
  local share, start = turns.share(key), turns.tag_of(key)
  local cost = needs and tier and needs[tier] or 1
  if start > turns.time then
    turns.time = start
    put('.time', string.format('%.17g', start))
  end
  local tag = math.max(turns.time, start + cost / (weight or share and share.weight or 1))
  if share then
    share.tag = tag
    put_share(key, share)
  else
    remember_tag(key, tag)
  end
  turns.version = turns.version + 1
  redis.call('ZREMRANGEBYSCORE', turns.shares, '-inf', string.format('%.17g', turns.time))
  if share and known['.large'] then turns.look_at_others(key, share) end
end

-- Nobody waits any more: nobody has been passed, and everybody begins anew.
function turns.forget()
  turns.passing = {}
  redis.call('DEL', turns.passed)
  if turns.by then
    turns.time = 0
    put('.time', false)
    redis.call('DEL', turns.shares)
  end
end

-- Whether more than PATIENCE that came later have been granted.
function turns.is_overdue(ticket)
  turns.flush()
  local lowest = redis.call('ZREVRANGE', turns.passed, PATIENCE, PATIENCE)[1]
  return (tonumber(lowest) or 0) > ticket
end

-- ------------------------------------------------------------------------------- heads

-- The rank of an id with a ticket, as text that sorts like it.
function turns.rank_text(id, ticket)
  local head_start = string.find(id, '^', 1, true) and tonumber(string.match(id, '%^(%-?%d+)$'))
  if not head_start then return padded(ticket) end
  return padded(math.max(ticket - head_start, 0)) .. '.' .. padded(ticket)
end

-- A head: {ticket, path, id, its rank as text}, and its rank if that is not its ticket.
function turns.head(text, path, id)
  if #text == 16 then return {tonumber(text), path, id, text} end
  return {tonumber(string.sub(text, 18)), path, id, text, rank = tonumber(string.sub(text, 1, 16))}
end

-- The turn of a head: what can be compared with other turns.
function turns.of(head)
  if not turns.by then return head.rank or head[1] end
  return hex(turns.tag_of(turns.key_of(head[2]))) .. padded(head.rank or head[1])
end

-- By what a node is found in unfinished; turns of nodes with the same are compared then.
function turns.score(head)
  return turns.by and turns.tag_of(turns.key_of(head[2])) or head.rank or head[1]
end

function turns.score_text(head) return string.format('%.17g', turns.score(head)) end

-- What no turn with this score comes after.
function turns.of_score(score)
  return turns.by and hex(score) .. string.rep('9', 16) or score
end

function turns.comes_before(one, other)
  local turn, others = turns.of(one), turns.of(other)
  if turn ~= others then return turn < others end
  return (one.rank and one[1] or 0) < (other.rank and other[1] or 0)
end

-- The record by which the key of a head is found at a node.
function turns.key_record(name, head)
  local key = turns.key_of(head[2])
  return name .. ' ' .. hex(turns.tag_of(key)) .. ' ' .. head[4] .. ' ' .. key
end

-- The first head at a node in fair order.
function turns.first(node)
  if node.turns_version == turns.version and node.heads then return node.heads[1] end
  node.heads, node.has_all_heads, node.turns_version = {}, true, turns.version
  while true do
    if pending then flush(parked) end
    local record = redis.call('ZRANGEBYLEX', parked, '[' .. node.name .. ' ', '(' .. node.name .. '!', 'LIMIT', 0, 1)[1]
    if not record then return nil end
    local key = string.match(record, '(%S+)$')
    local prefix = node.name .. '!' .. key
    local found = turns.share(key)
      and redis.call('ZRANGEBYLEX', parked, '[' .. prefix .. ' ', '(' .. prefix .. '!', 'LIMIT', 0, 1)[1]
    local text, path, id = string.match(found or '', '^%S+ (%S+) (%S+) (%S+)$')
    local head = text and turns.head(text, path, id)
    local right = head and turns.key_record(node.name, head)
    if right == record then
      node.heads[1] = head
      return head
    end
    redis.call('ZREM', parked, record)
    if right then redis.call('ZADD', parked, 0, right) end
  end
end

end
