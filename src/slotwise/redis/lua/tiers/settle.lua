-- tiers/settle.lua: state what an acquisition has really taken of rates, or fill a bucket.
-- KEYS  1-12 the Tiers object (tiers/state.lua)
-- ARGV  1 now (s; empty: the server's clock)   2 the loop client that calls, or empty
--       3 acquisition id, and 4 "tier=units,..."; or 3 empty, and 4 the node whose bucket is filled
-- Returns {1, or 0 if the id is unknown, or no longer known}, followed by messages for the caller.
-- Mirrors PathLedger.expire, then PathLedger.charge or refill_tier.
-- include tiers/rules.lua
if open(1, ARGV[1]) then return redis.error_reply(repairs.REPLY) end
caller = ARGV[2]
local found = 0
if known['.shape'] then
  expire()
  if ARGV[3] ~= '' then
    found = buckets.correct(ARGV[3], ARGV[4]) and 1 or 0
  else
    local node = read_node(ARGV[4])
    if node.rate then
      buckets.refill(node)
      node.level = node.rate.full
      change(node)
      touched[node.name] = node
      found = 1
    end
  end
  serve()
end
return answer({found})
