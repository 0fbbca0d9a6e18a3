-- base/claim.lua: the record of one acquisition in the state of a name. Not a script.
--
--   interval ttl ticket granted numbers token owner
--
--   interval  heartbeat_max_interval (s)
--   ttl       s, or "-"
--   ticket    its place in the queue
--   granted   when that was (s), or "0" while it waits; for a path, "-" and when that began (s)
--   numbers   of its slots, like "1-3,7"; "0" while it waits
--   token     the fencing token; "0" while it waits
--   owner     "!secret host pid label" (proof.lua); a path through tiers stands in front of it;
--             "pid/grace" if it keeps its slots for some seconds after a kick (semaphore/kick.lua)
--
-- It is written and read here and in base/claim_in_full.lua alone. Here is what the fast halves of scripts need of
-- it, since every function costs each call.
local function claim_text(interval, ttl, ticket, granted, numbers, token, owner)
  return interval .. ' ' .. ttl .. ' ' .. ticket .. ' ' .. granted .. ' ' .. numbers .. ' ' .. token .. ' ' .. owner
end

local function waiting_claim_text(interval, ttl, ticket, owner)
  return interval .. ' ' .. ttl .. ' ' .. ticket .. ' 0 0 0 ' .. owner
end

-- The ttl and slot number of a claim that holds one slot, and since when, else nil.
local function ttl_and_number(text)
  local ttl, granted, number = string.match(text or '', '^%S+ (%S+) %S+ (%S+) (%d+) ')
  return ttl, number, granted
end

-- Interval, ttl, ticket and owner of a claim that waits, else nil.
local function waiting_claim(text)
  return string.match(text or '', '^(%S+) (%S+) (%S+) 0 0 0 (.*)$')
end
