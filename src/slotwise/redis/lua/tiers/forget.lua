-- tiers/forget.lua: remove all that is known of tiers that nobody uses: their values, what they were
-- resized to, that they are closed.
-- KEYS  1-12 the Tiers object (tiers/state.lua)
-- ARGV  1 now (s; empty: the server's clock)
-- Returns 1, or 0 if there was nothing, or -1 if they are in use, or a rate is not full or can
-- still be settled; then nothing has changed.
-- include tiers/rules.lua
if open(1, ARGV[1]) then return redis.error_reply(repairs.REPLY) end
if known['.shape'] then
  expire()
  save()
end
if redis.call('EXISTS', keys.holders, keys.waiters, keys.cleanup) > 0 then return -1 end
local found = redis.call('EXISTS', unpack(KEYS, 1, 12))
repairs.unlink(unpack(KEYS, 1, 12))
return math.min(found, 1)
