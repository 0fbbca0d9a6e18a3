-- rules/base.lua: the clock, numbers as text, and the record of a claim. Not a script: _scripts.py puts it in place of the
-- first line that includes it. The quick halves of scripts include it too, and every function costs each call.
local CHUNK = 1000     -- arguments of one command: Lua can't unpack many more
local AT_ONCE = 100    -- how many claims one call grants, ends or refuses: up to 4 ms in which nobody else is served
local PAGE = 250       -- how many claims one call lists: about 2 ms

local now, now_text, now_us

local function seconds(number) return string.format('%.6f', number) end
local function whole(number) return string.format('%d', number) end  -- exact up to 2^53, as all of them are

-- Set the clock to a time (s), or to that of the server if it is empty.
local function set_clock(given)
  local given_s = tonumber(given)
  if given_s then
    now_us = math.floor(given_s * 1000000 + 0.5)
  else
    local time = redis.call('TIME')
    now_us = time[1] * 1000000 + time[2]
  end
  now = given_s or now_us / 1000000
  now_text = seconds(now)
end

-- The loop client that an id of slotwise's own client belongs to; its channel is slotwise:CLIENT.
local function client_of(id) return string.match(id, '^sw%-([^-]+)%-') end

-- What an id needs of each tier, narrow to wide, or nil for one slot of each. It stands at its end: "*2.1.3".
local function needs_of(id)
  if not string.find(id, '*', 1, true) then return nil end
  local needs = {}
  for need in string.gmatch(string.match(id, '%*([%d.]+)$') or '', '%d+') do needs[#needs + 1] = tonumber(need) end
  return needs[1] and needs
end

-- The claim of an id, in the field of state with that name:
--   interval ttl ticket granted numbers token path owner
--     interval  heartbeat_max_interval (s)
--     ttl       s, or "-"
--     ticket    its place in the queue
--     granted   when that was (s); while it waits, "-" and when that began (s)
--     numbers   of its slots, like "1-3,7"; "0" while it waits
--     token     the fencing token; "0" while it waits
--     path      its nodes (rules/state.lua)
--     owner     "!secret host pid label" (rules/state.lua says what for); "pid/grace" if it keeps its slots for some
--               seconds after a kick
local function claim_text(interval, ttl, ticket, granted, numbers, token, path, owner)
  return interval .. ' ' .. ttl .. ' ' .. ticket .. ' ' .. granted .. ' ' .. numbers .. ' ' .. token .. ' ' .. path
    .. ' ' .. owner
end
