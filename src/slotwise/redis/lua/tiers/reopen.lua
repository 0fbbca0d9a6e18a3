-- tiers/reopen.lua: undo tiers/close.lua; tiers that are open are left alone.
-- KEYS  1-8 the Tiers object (tiers/state.lua)
-- ARGV  1 now (s; empty: the server's clock)
-- Returns 1 if they were closed.  Mirrors PathLedger.reopen: nobody waits who could be granted.
-- include tiers/rules.lua
open(1, ARGV[1])
local was_closed = known['.closed'] and 1 or 0
put('.closed', false)
put('.reason', false)
save()
return was_closed
