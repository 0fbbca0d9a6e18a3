-- tiers/close.lua: refuse all waiters and newcomers, until tiers/reopen.lua.
-- KEYS  1-12 the Tiers object (tiers/state.lua)
-- ARGV  1 now (s; empty: the server's clock)   2 the loop client that calls
--       3 the reason (only if there is one)
-- Returns messages for the caller, followed by "unfinished" if calls of tiers/heartbeat.lua have to refuse
-- the rest of very many waiters. If nobody calls, their heartbeats have them refused.
-- Mirrors PathLedger.expire, then PathLedger.close.
-- include tiers/rules.lua
if open(1, ARGV[1]) then return redis.error_reply(repairs.REPLY) end
caller = ARGV[2]
expire()
if not known['.closed'] then put('.until', whole(life_us)) end
put('.closed', '1')
put('.reason', ARGV[3] or false)
keep_closed()
expire()  -- which refuses the waiters now
return answer({})
