-- tiers/inspect_path.lua: how full the tiers of one path are, or who holds or waits.
-- KEYS  1-12 the Tiers object (tiers/state.lua)
-- ARGV  1 now (s; empty: the server's clock)   2 "path", "estimate", "holders", "waiters" or "changes"
--       3 the path, for "path" and "estimate", followed by "*" and what is needed if that is not
--       one slot of each; for "changes" a node; for the others where to continue with the list, empty at first
-- Returns {1 if closed and 2 if for a reason, the reason or "", 1 if something is unfinished,
-- where to continue, or "" at the end}, followed for "path" by, {} if nobody is there, else for each
-- node: held, waiting, value, kept, and for how long it is paused (ms); for "estimate" when a newcomer would be served (s) or "", or
-- "refused", value and tier if never; for "changes" how the value of an adaptive node has moved, and 1 if it is
-- frozen, else 0 (tiers/adaptive.lua); for the others, in turn: an id, its claim, or "" if that can't be
-- found, and the node that a waiter or the head of its group lacks, or what a holder has of each tier
-- after corrections ("1.30.1"), else "". Lists of up to PAGE
-- come in one call; of longer ones each call has a part, in which an entry may appear twice.
-- Mirrors PathLedger.expire, then reads.
-- include tiers/rules.lua
-- include tiers/estimate.lua
if open(1, ARGV[1]) then return redis.error_reply(repairs.REPLY) end
if known['.shape'] then
  expire()
  save()
end
local closed = known['.closed'] and (known['.reason'] and 2 or 1) or 0
local reply = {closed, known['.reason'] or '', is_unfinished(), ''}
if ARGV[2] == 'path' then
  if known['.shape'] then
    for _, node in ipairs(nodes_of(ARGV[3])) do
      local value, kept = value_of(node), node.kept_slots or 0
      if node.waiting > 0 and first_parked(node) then kept = math.max(value - held_of(node), 0) end
      local paused_ms = math.max(math.ceil((pauses.until_of(node) - now_us) / 1000), 0)
      for _, each in ipairs({held_of(node), node.waiting, value, kept, paused_ms}) do reply[#reply + 1] = each end
    end
  end
elseif ARGV[2] == 'changes' then
  local node = known['.shape'] and read_node(ARGV[3])
  reply[5] = get('&' .. ARGV[3]) or ''
  reply[6] = node and adapting.rules[node.tier] and adapting.read(node).frozen or 0
elseif ARGV[2] == 'estimate' then
  local path = string.match(ARGV[3], '^[^*]+')
  reply[5] = '0'
  if known['.shape'] then
    local path_nodes, needs = nodes_of(path), needs_of(ARGV[3])
    local tier, value = unfit(path_nodes, needs)
    if tier then
      reply[5], reply[6], reply[7] = 'refused', value, tier
    else
      reply[5] = estimates.estimate_text(estimates.estimate(path, path_nodes, needs))
    end
  end
else
  local key, from, ids = ARGV[2] == 'holders' and keys.holders or keys.waiters, ARGV[3], nil
  if from == '' and redis.call('ZCARD', key) <= PAGE then
    ids = redis.call('ZRANGE', key, 0, -1)
  else
    local found = redis.call('ZSCAN', key, from == '' and '0' or from, 'COUNT', PAGE)
    reply[4], ids = found[1] ~= '0' and found[1] or '', {}
    for i = 1, #found[2], 2 do ids[#ids + 1] = found[2][i] end
  end
  fetch(ids)
  local paths, groups = {}, {}
  for _, id in ipairs(key == keys.waiters and ids or {}) do
    local claim = read_claim(id)
    local field = claim and '>' .. claim.path
    paths[id] = claim and claim.path
    if field and known[field] == nil then
      known[field] = false
      groups[#groups + 1] = field
    end
  end
  fetch(groups)
  local corrected = {}
  for i, id in ipairs(key == keys.holders and next(rates) and ids or {}) do corrected[i] = '$' .. id end
  fetch(corrected)
  for _, id in ipairs(ids) do
    local _, lacking = parked_at(paths[id] or '')
    reply[#reply + 1] = id
    reply[#reply + 1] = known[id] or ''
    reply[#reply + 1] = lacking or string.match(known['$' .. id] or '', '(%S+)$') or ''
  end
end
return reply
