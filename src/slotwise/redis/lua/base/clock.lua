-- base/clock.lua: the clock, numbers as text, and who an id belongs to: what the fast halves of
-- scripts need. Not a script. Every function here costs each call, so there are no others.
local function seconds(number) return string.format('%.6f', number) end
local function whole(number) return string.format('%d', number) end  -- exact up to 2^53, as all of them are

-- The time in microseconds: the given one (s), or that of the server if it is empty.
local function microseconds(given)
  local given_s = tonumber(given)
  if given_s then return math.floor(given_s * 1000000 + 0.5) end
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- The loop client that an id of slotwise's own client belongs to; its channel is slotwise:CLIENT.
local function client_of(id) return string.match(id, '^sw%-([^-]+)%-') end
