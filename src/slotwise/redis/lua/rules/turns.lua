-- rules/turns.lua: the turns of waiters, by which they are served, and who was passed. Not a
-- script.
--
-- The turn of a head is its rank: its ticket less its head start, which stands at the end of its id
-- as
-- "^microseconds" before what it needs. In fair order the tag of its key comes before that
--   (rules/fair.lua).

-- The turn of a head, in a form that can be compared with other turns, and the score of its node in
-- unfinished; nodes with equal scores are compared by their turns.
local PATIENCE = 100
local turn_of, score_of
local head_to_serve  -- makes a head whose turn will be asked for

local function rank_of(head) return head.rank or head[1] end

-- Begin with an object of this shape.
function turns.read(shape)
  turns.by, turns.cost, turns.lowest = nil, nil, nil
  turn_of, score_of, head_to_serve = rank_of, rank_of, turns.head
  if shape and shape:find('=', 1, true) then fair.begin(shape) end
end

-- Note a grant while somebody waits; `weight` is a newcomer's.
function turns.count_grant(ticket, path, needs, weight)
  turns.passing[#turns.passing + 1] = ticket
  if turns.by then fair.count_grant(path, needs, weight) end
end

-- Forget all turns once nobody waits: nobody can have been passed.
function turns.forget()
  turns.passing, turns.lowest = {}, nil
  call('DEL', keys.passed)
  if turns.by then fair.forget() end
end

-- Write the tickets of those that this call has granted while others waited, and keep the highest.
function turns.flush()
  if not turns.passing[1] then return end
  local members = {}
  for i, ticket in ipairs(turns.passing) do
    members[2 * i - 1], members[2 * i] = whole(ticket), whole(ticket)
  end
  call_in_chunks(members, 'ZADD', keys.passed)
  call('ZREMRANGEBYRANK', keys.passed, 0, -PATIENCE - 2)
  turns.passing, turns.lowest, fresh[keys.passed] = {}, nil, true
end

-- Whether more than PATIENCE later requests have been granted.
function turns.is_overdue(ticket)
  turns.flush()
  if not turns.lowest then
    turns.lowest = tonumber(call('ZREVRANGE', keys.passed, PATIENCE, PATIENCE)[1]) or 0
  end
  return turns.lowest > ticket
end

-- ------------------------------------------------------------------------------- heads

-- The head start of an id (us).
function turns.head_start_of(id)
  return id:find('^', 1, true) and tonumber(id:match('%^(%-?%d+)%*')) or 0
end

-- The rank of an id with a ticket, as text that sorts like it.
function turns.rank_text(id, ticket)
  local head_start = turns.head_start_of(id)
  if head_start == 0 then return padded(ticket) end
  return padded(math.max(ticket - head_start, 0)) .. '.' .. padded(ticket)
end

-- A head: {ticket, path, id, its rank as text}, and its rank if that is not its ticket.
function turns.head(text, path, id)
  if #text == 16 then return {tonumber(text), path, id, text, nil} end
  return {tonumber(text:sub(18)), path, id, text, nil, rank = tonumber(text:sub(1, 16))}
end

function turns.comes_before(one, other)
  -- on one path all have the tag of one key
  local turn_in = one[2] == other[2] and rank_of or turn_of
  local turn, others = turn_in(one), turn_in(other)
  if turn ~= others then return turn < others end
  return (one.rank and one[1] or 0) < (other.rank and other[1] or 0)
end
