-- semaphore/kick.lua: end somebody's acquisition, with all its slots; the next waiters get them at once, or
-- after its grace, if it has one and isn't released before.
-- KEYS  1-7 the semaphore (semaphore/rules.lua)
-- ARGV  1 now (s; empty: the server's clock)   2 acquisition id   3 the loop client that calls, or empty
--       4 heartbeat_max_interval (s), for foreign waiters   5 pattern of foreign notification lists
-- Returns {slots it held; 0 if it held none}, followed by messages for the caller. The process of
-- the holder gets the message "kicked"; a foreign client finds out by its ping.
-- Mirrors Ledger.expire, then Ledger.release. Waiters are left alone.
-- include semaphore/kick_rule.lua
open(1, ARGV[1])
local id = ARGV[2]
caller, pattern = ARGV[3], ARGV[5]
end_ttls()
drop_silent()
local released = 0
if redis.call('ZSCORE', main, id) and id_of(id) == id then released = kick(id, tonumber(ARGV[4])) end
serve(current_value(), tonumber(ARGV[4]))
table.insert(messages, 1, released)
return messages
