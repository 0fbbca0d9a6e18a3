-- tiers/inspect.lua: how full the tiers are, in steps of bounded cost.
-- KEYS  1-12 the Tiers object (tiers/state.lua)
-- ARGV  1 now (s; empty: the server's clock)   2 where to continue, 0 at first
-- Returns {where to continue, 0 at the end, holders, waiters, 1 if something is unfinished, the
-- tiers' values, or "" if nobody is there, the time (us), .pauses or "", {the numbers of tiers that are
-- frozen, and nodes}, then in turn a node and its record (tiers/state.lua)};
-- about AT_A_LOOK fields are read in one step, and so at one instant.
-- Mirrors PathLedger.expire, then reads.
-- include tiers/rules.lua
-- include tiers/frozen.lua
local AT_A_LOOK = 1000  -- a few ms in which nobody else is served
if open(1, ARGV[1]) then return redis.error_reply(repairs.REPLY) end
if known['.shape'] then
  expire()
  save()
end
-- A new key of a tier that is frozen as a whole starts at that value.
for tier, at in pairs(adapting.frozen) do
  if at ~= '-' then value_texts[tier] = string.gsub(value_texts[tier], '^(%d+_%d+_)%d+', '%1' .. at) end
end
local found = redis.call('HSCAN', keys.state, ARGV[2], 'MATCH', '[0-9]*', 'COUNT', AT_A_LOOK)
local reply = {
  found[1], redis.call('ZCARD', keys.holders), redis.call('ZCARD', keys.waiters), is_unfinished(),
  table.concat(value_texts, ','), whole(now_us), known['.pauses'] or '',
  next(adapting.rules) and frozen_of(keys.state, known['.frozen'], found[2]) or {},
}
for _, each in ipairs(found[2]) do reply[#reply + 1] = each end
return reply
