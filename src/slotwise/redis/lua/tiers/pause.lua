-- tiers/pause.lua: grant nothing of a node, or of a whole tier, for a while; if there are several
-- pauses, the one that ends last counts.
-- KEYS  1-12 the Tiers object (tiers/state.lua)
-- ARGV  1 now (s; empty: the server's clock)   2 the loop client that calls   3 heartbeat_max_interval (s)
--       4 the tiers' names, as the caller was made   5 and their values
--       6 the node, or the number of a tier for all of it   7 for how long (s)
-- Returns {"paused"}, {"conflict", tier or -1, its value} or {"closed", the reason if there is one},
-- followed by messages for the caller. Waiters are told to check, and learn when to come back.
-- Mirrors PathLedger.expire, then PathLedger.pause.
-- include tiers/rules.lua
if open(1, ARGV[1]) then return redis.error_reply(repairs.REPLY) end
caller = ARGV[2]
local name, length = ARGV[6], tonumber(ARGV[7])
if known['.closed'] then return closed_reply() end
local clash = agreement.declare(ARGV[4], ARGV[5])
if clash then return {'conflict', clash - 1, agreement.conflicting(clash)} end
outlive(math.max(longest, tonumber(ARGV[3])))
expire()
if length > 0 then
  longest = math.max(longest, tonumber(ARGV[3]))
  pauses.begin(name, math.ceil(length * 1000000))
end
return answer({'paused'})
