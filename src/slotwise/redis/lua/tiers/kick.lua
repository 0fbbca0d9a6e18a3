-- tiers/kick.lua: end somebody's acquisition in all its tiers; the next waiters get its slots at once.
-- KEYS  1-12 the Tiers object (tiers/state.lua)
-- ARGV  1 now (s; empty: the server's clock)   2 acquisition id   3 the loop client that calls, or empty
-- Returns {1 if it held, else 0}, followed by messages for the caller. The process of the
-- holder gets the message "kicked".
-- Mirrors PathLedger.expire, then PathLedger.release. Waiters are left alone.
-- include tiers/rules.lua
if open(1, ARGV[1], {ARGV[2]}) then return redis.error_reply(repairs.REPLY) end
caller = ARGV[3]
begin_though_full(keys.holders)
expire()
local claim = read_claim(ARGV[2])
local ended = release(ARGV[2])
if ended == 1 and claim then notify(ARGV[2], claim.owner, 'kicked ' .. ARGV[2]) end
serve()
return answer({ended})
