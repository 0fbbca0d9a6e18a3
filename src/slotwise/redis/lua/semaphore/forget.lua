-- semaphore/forget.lua: remove all that is known of a semaphore nobody holds or waits for: its value,
-- what it was resized to, that it is closed.
-- KEYS  1-7 the semaphore (semaphore/rules.lua)
-- ARGV  1 now (s; empty: the server's clock)
-- Returns 1, or 0 if there was nothing, or -1 if it is in use, and nothing has changed.
-- include semaphore/rules.lua
open(1, ARGV[1])
end_ttls()
drop_silent()
if redis.call('EXISTS', main, waiting) > 0 then return -1 end
local found = redis.call('EXISTS', unpack(KEYS, 1, 7))
repairs.unlink(unpack(KEYS, 1, 7))
return math.min(found, 1)
