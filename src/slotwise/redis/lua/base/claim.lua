-- base/claim.lua: the record of one acquisition, as it stands in the state of a name. Not a script.
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
-- It is written and read here alone. Those who need a part of it on a fast path read that part.
local function claim_text(interval, ttl, ticket, granted, numbers, token, owner)
  return interval .. ' ' .. ttl .. ' ' .. ticket .. ' ' .. granted .. ' ' .. numbers .. ' ' .. token .. ' ' .. owner
end

local function waiting_claim_text(interval, ttl, ticket, owner)
  return interval .. ' ' .. ttl .. ' ' .. ticket .. ' 0 0 0 ' .. owner
end

-- All of it; nil for garbage too.
local function parse_claim(text)
  local interval, ttl, ticket, granted, numbers, token, owner =
    string.match(text or '', '^(%S+) (%S+) (%S+) (%S+) (%d[%d,-]*) (%d+) (.*)$')
  if not (tonumber(interval) and tonumber(ticket)) then return nil end
  return {
    interval = interval, ttl = ttl, ticket = ticket, granted = granted, numbers = numbers,
    number = tonumber(string.match(numbers, '^%d+')), token = tonumber(token), owner = owner,
  }
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

-- The slot numbers of a claim, "0" while it waits; nil for what parse_claim doesn't understand.
local function numbers_in(text)
  local interval, ticket, numbers = string.match(text or '', '^(%S+) %S+ (%S+) %S+ (%d[%d,-]*) %d+ ')
  return tonumber(interval) and tonumber(ticket) and numbers or nil
end

local function owner_in(text)
  return string.match(text or '', '^%S+ %S+ %S+ %S+ %S+ %S+ (.*)$')
end

-- ---------------------------------------------------------------- numbers as text: "1-3,7"

local function range(low, high)
  return low == high and whole(low) or whole(low) .. '-' .. whole(high)
end

local function each_range(text)  -- of "1-3,7": 1 and 3, then 7 and 7
  local following = string.gmatch(text, '[^,]+')
  return function()
    local part = following()
    if not part then return nil end
    local low, high = string.match(part, '^(%d+)%-?(%d*)$')
    low = tonumber(low) or 0
    return low, tonumber(high) or low
  end
end
