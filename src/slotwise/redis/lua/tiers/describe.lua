-- tiers/describe.lua: which tiers a name has, for a caller that did not make them.
-- KEYS  the Tiers object (tiers/state.lua)
-- ARGV  1 now (s; empty: the server's clock)
-- Returns {the tiers' names, or "" if they are not known, their values, both as they were declared,
-- holders, waiters, 1 if a bucket is not full, else 0, 1 if closed and 2 if for a reason, the reason or "",
-- 1 if something is unfinished}.
-- Mirrors PathLedger.expire, then reads.
-- include tiers/rules.lua
if open(1, ARGV[1]) then return redis.error_reply(repairs.REPLY) end
if known['.shape'] then
  expire()
  save()
end
local closed = known['.closed'] and (known['.reason'] and 2 or 1) or 0
return {
  known['.shape'] or '', known['.declared'] or '', redis.call('ZCARD', keys.holders), redis.call('ZCARD', keys.waiters),
  redis.call('EXISTS', keys.cleanup), closed, known['.reason'] or '', is_unfinished(),
}
