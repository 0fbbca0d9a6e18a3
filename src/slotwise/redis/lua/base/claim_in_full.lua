-- base/claim_in_full.lua: the rest of base/claim.lua: all parts of a claim, and its slot numbers. Not a script.
-- include base/claim.lua
-- All of it; nil for garbage too.
local function parse_claim(text)
  local interval, ttl, ticket, granted, numbers, token, owner =
    string.match(text or '', '^(%S+) (%S+) (%S+) (%S+) (%d[%d,-]*) (%d+) (.*)$')
  if not (tonumber(interval) and tonumber(ticket) and (ttl == '-' or tonumber(ttl))) then return nil end
  return {
    interval = interval, ttl = ttl, ticket = ticket, granted = granted, numbers = numbers,
    number = tonumber(string.match(numbers, '^%d+')), token = tonumber(token), owner = owner,
  }
end

local is_number = {}  -- of intervals: most claims have the same

-- All of the claim of a path; nil for garbage too. `before` is what stands before `granted`.
local function parse_path_claim(text)
  local before, interval, ttl, ticket, granted, numbers, token, path, owner_at =
    string.match(text or '', '^((%S+) (%S+) (%S+)) (%S+) (%d[%d,-]*) (%d+) (%S+) ()')
  ticket = tonumber(ticket)
  if not (ticket and (is_number[interval] or tonumber(interval)) and (ttl == '-' or tonumber(ttl))) then return nil end
  is_number[interval] = true
  return {  -- eight fields: a ninth would double the table
    before = before, ttl = ttl, ticket = ticket, granted = granted, numbers = numbers, token = token, path = path,
    owner = string.sub(text, owner_at),
  }
end

local function path_claim_text(before, granted, numbers, token, path, owner)
  return before .. ' ' .. granted .. ' ' .. numbers .. ' ' .. token .. ' ' .. path .. ' ' .. owner
end

-- The lowest slot number of a claim, as text.
local function number_of(claim) return string.match(claim.numbers, '^%d+') end

-- The slot numbers of a claim, "0" while it waits, and its token; nil for what parse_claim doesn't understand.
local function numbers_in(text)
  local interval, ticket, numbers, token = string.match(text or '', '^(%S+) %S+ (%S+) %S+ (%d[%d,-]*) (%d+) ')
  if not (tonumber(interval) and tonumber(ticket)) then return nil end
  return numbers, tonumber(token)
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
