-- kick.lua: end somebody's acquisition, all its slots; the next ones get them at once.
-- KEYS  1-7 the semaphore (common.lua)
-- ARGV  1 now (s; empty: the server's clock)   2 acquisition id   3 the caller's seat, or empty
--       4 heartbeat_max_interval (s), for foreign waiters   5 pattern of foreign notification lists
-- Returns {slots it held; 0 if it held none}, and behind it what it has to tell the caller's
-- seat. The holder's seat is told "kicked"; one of a foreign client finds out by its ping.
-- Mirrors Ledger.expire, then Ledger.release. Who stands in line stays there.
-- include common.lua
open(1, ARGV[1])
local id = ARGV[2]
caller, pattern = ARGV[3], ARGV[5]
end_ttls()
bury_silent()
local given = 0
if redis.call('ZSCORE', main, id) and id_of(id) == id then
  local who = who_of(id)
  given = drop(id)
  tell(id, who, 'kicked')
end
settle(current_value(), tonumber(ARGV[4]))
table.insert(told, 1, given)
return told
