-- tiers/reopen.lua: undo tiers/close.lua and tiers/pause.lua; tiers that are open are left alone.
-- KEYS  1-12 the Tiers object (tiers/state.lua)
-- ARGV  1 now (s; empty: the server's clock)   2 the loop client that calls
-- Returns {1 if they were closed}, followed by messages for the caller.
-- Mirrors PathLedger.expire, then PathLedger.reopen and PathLedger.end_pauses.
-- include tiers/rules.lua
if open(1, ARGV[1]) then return redis.error_reply(repairs.REPLY) end
caller = ARGV[2]
local was_closed = known['.closed'] and 1 or 0
put('.reason', false)
if known['.closed'] then
  -- From now on they are kept for as long as if they had not been closed.
  local until_us = tonumber(get('.until')) or 0
  put('.closed', false)
  put('.until', false)
  keep_until(math.max(until_us, now_us + 4 * math.max(longest, 15) * 1000000))
end
if known['.shape'] then expire() end
if pauses.ends then
  pauses.finish(math.huge)
  serve()
end
return answer({was_closed})
