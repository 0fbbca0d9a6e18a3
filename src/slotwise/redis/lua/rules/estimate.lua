-- rules/estimate.lua: when a newcomer would get a path (s), or nil: path_in
-- (slotwise/_ledger/path_estimates.py) and slots_in (slotwise/_ledger/estimates.py) in Lua. Not a
-- script.
made_when_needed(estimates, function()
local SAMPLE = 100

-- The text of .hold from now on, if all holds are to be timed.
function estimates.time_all(text)
  return times_all(text) and text or 'all ' .. (text or '0 0')
end

-- The mean hold (s), or nil.
local function mean_hold()
  local busy, ended = string.match(get('.hold') or '', '(%S+) (%S+)$')
  busy, ended = tonumber(busy), tonumber(ended)
  return busy and ended and ended > 0 and busy / ended or nil
end

-- An estimate of the sum of `count` numbers, of which only the first are given.
local function total(first, count)
  local sum = 0
  for _, each in ipairs(first) do sum = sum + each end
  return #first > 0 and sum * count / #first or 0
end

-- An estimate in a reply: seconds, or "".
function estimates.text(estimate) return estimate and string.format('%.6f', estimate) or '' end

-- What some waiters, who end records of the queue, need of a node.
local function needs_in(records, node)
  local needs = {}
  for i, record in ipairs(records) do needs[i] = need_of(node, needs_of(record:match('(%S+)$'))) end
  return needs
end

-- What the waiters of a group need of the node where it is parked, as far as their narrower tiers
-- let them through.
local function group_wants(path, node)
  local at_once, tier = math.huge, 0
  for _, name in ipairs(names_of(path)) do
    tier = tier + 1
    if tier >= node.tier then break end
    local narrower = read_node(name)
    local value = value_of(narrower)
    if not narrower.rate and value > 0 then at_once = math.min(at_once, value) end
  end
  local from, to = '[' .. path .. ' ', '(' .. path .. '!'
  local waiting = call('ZLEXCOUNT', flush(keys.queue), from, to)
  local first = needs_in(call('ZRANGEBYLEX', keys.queue, from, to, 'LIMIT', '0', SAMPLE), node)
  return waiting > 0 and total(first, waiting) * math.min(waiting, at_once) / waiting or 0
end

-- What the waiters parked at a node need.
local function ahead_at(node)
  if node.waiting == 0 then return 0 end
  if is_line then
    return total(needs_in(call('ZRANGE', flush(keys.queue), 0, SAMPLE - 1), node), node.waiting)
  end
  local from, to = '[' .. node.name .. ' ', '(' .. node.name .. '!'
  if node.is_by_key then from, to = '[' .. node.name .. '!', '(' .. node.name .. '"' end
  -- Groups, each of which costs more than a waiter.
  local first = call('ZRANGEBYLEX', flush(keys.parked), from, to, 'LIMIT', '0', 30)
  for i, record in ipairs(first) do
    first[i] = group_wants(record:match('^%S+ %S+ (%S+) '), node)
  end
  return total(first, call('ZLEXCOUNT', keys.parked, from, to))
end

function estimates.of(path, path_nodes, needs)
  note_holds()
  local is_free, slowest, is_known, paused_us = not queue.has_waiters_on(path), 0, true, 0
  for _, node in ipairs(path_nodes) do
    local need, value, expected = need_of(node, needs), value_of(node), nil
    if not has_room(node, need) or queue.has_waiters_at(node) then is_free = false end
    local wanted = ahead_at(node) + (node.kept and node.kept_slots or 0) + need
    if node.rate then
      expected = math.max(wanted * node.rate.unit - node.level, 0) / node.rate.gain / 1000000
    else
      local missing, mean = node.held + wanted - value, mean_hold()
      expected = (missing <= 0 or value == 0) and 0 or mean and missing * mean / value
    end
    if pauses.ends then paused_us = math.max(paused_us, pauses.until_of(node) - now_us) end
    is_known = is_known and expected
    slowest = math.max(slowest, expected or 0)
  end
  if is_free then return 0 end
  if paused_us > 0 then return math.max(slowest, paused_us / 1000000) end
  return is_known and slowest or nil
end
end)
