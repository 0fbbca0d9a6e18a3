-- tiers/estimate.lua: when a newcomer would get a path (s), or nil: path_in (slotwise/_ledger/path_estimates.py) in
-- Lua. Not a script.
-- include base/estimate.lua

-- What the waiters of a group need of the node where it is parked, as far as their narrower tiers
-- let them through.
function estimates.group_wants(path, node)
  local at_once, tier = math.huge, 0
  for _, name in ipairs(names_of(path)) do
    tier = tier + 1
    if tier >= node.tier then break end
    local narrower = read_node(name)
    local value = value_of(narrower)
    if not narrower.rate and value > 0 then at_once = math.min(at_once, value) end
  end
  local from, to = '[' .. path .. ' ', '(' .. path .. '!'
  local waiting = redis.call('ZLEXCOUNT', keys.queue, from, to)
  local first = redis.call('ZRANGEBYLEX', keys.queue, from, to, 'LIMIT', '0', SAMPLE)
  for i, record in ipairs(first) do first[i] = need_of(node, needs_of(string.match(record, '(%S+)$'))) end
  return waiting > 0 and estimates.total(first, waiting) * math.min(waiting, at_once) / waiting or 0
end

-- What the waiters parked at a node need.
function estimates.ahead_at(node)
  if node.waiting == 0 then return 0 end
  local from, to = '[' .. node.name .. ' ', '(' .. node.name .. '!'
  if node.is_by_key then from, to = '[' .. node.name .. '!', '(' .. node.name .. '"' end
  local first = redis.call('ZRANGEBYLEX', keys.parked, from, to, 'LIMIT', '0', 30)  -- groups, each of which costs more than a waiter
  for i, record in ipairs(first) do first[i] = estimates.group_wants(string.match(record, '^%S+ %S+ (%S+) '), node) end
  return estimates.total(first, redis.call('ZLEXCOUNT', keys.parked, from, to))
end

function estimates.estimate(path, path_nodes, needs)
  unwritten.note_ends()
  if pending then
    flush(keys.queue)
    flush(keys.parked)
  end
  local is_free, slowest, is_known, paused_us = not parked_at(path), 0, true, 0
  for _, node in ipairs(path_nodes) do
    local need, value, expected = need_of(node, needs), value_of(node), nil
    if not has_room(node, need) or (node.waiting > 0 and first_parked(node)) then is_free = false end
    local wanted = estimates.ahead_at(node) + (node.kept and node.kept_slots or 0) + need
    if node.rate then
      expected = math.max(wanted * node.rate.unit - node.level, 0) / node.rate.gain / 1000000
    else
      expected = estimates.slots_in(node.held + wanted - value, value, estimates.mean_hold(get('.hold')))
    end
    paused_us = math.max(paused_us, pauses.until_of(node) - now_us)
    is_known = is_known and expected
    slowest = math.max(slowest, expected or 0)
  end
  if is_free then return 0 end
  if paused_us > 0 then return math.max(slowest, paused_us / 1000000) end
  return is_known and slowest or nil
end
