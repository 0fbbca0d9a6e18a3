-- base/base.lua: what the scripts of semaphores and those of tiers have in common: the clock, a
-- server that is full, a name that is spoilt, a process that died. Not a script:
-- _scripts.py puts it in place of the first line "-- include base/base.lua".
-- include base/clock.lua
local CHUNK = 1000      -- arguments of one call: Lua cannot unpack many more
local CLOSED = 30 * 24 * 3600  -- for how long it is known that a name is closed, after each call that met it (s)
local AT_ONCE = 200     -- how many a call drops, serves or refuses: some 5 ms in which nobody else is served
local SLOTS_AT_ONCE = 2000  -- how many slots it drops: one acquisition may have 10,000
local PAGE = 1000       -- how many claims a call lists, or looks through
local LOOKED_AT = 1000  -- how many claims are looked at for those of a process that died

local now, now_text, now_us

local function set_clock(given)
  now_us = microseconds(given)
  now = tonumber(given) or now_us / 1000000
  now_text = seconds(now)
end

-- Call a command with as many arguments as there are, in calls of bounded size. Pairs stay together.
local function call_in_chunks(arguments, ...)
  for from = 1, #arguments, CHUNK do
    local words = {...}
    local before = #words + 1 - from
    for i = from, math.min(from + CHUNK - 1, #arguments) do words[before + i] = arguments[i] end
    redis.call(unpack(words))
  end
end

-- Begin to write on a server that may be at its maxmemory; whether it is. It refuses a script's
-- first write if that may take memory, and none that follow. Signs of life and releases take next
-- to none, so they begin with a write that is never refused. Neither of these changes anything.
local function begin_though_full(key)
  local refused = redis.pcall('ZADD', key, 'XX', 0, '')
  if type(refused) ~= 'table' or not string.find(refused.err or '', 'OOM', 1, true) then return false end
  redis.pcall('ZREM', key, '')
  return true
end

-- Call a function; nil and why, if it met a key that somebody has spoilt.
local function guarded(serve, ...)
  local fine, reply = pcall(serve, ...)
  if fine then return reply end
  return nil, type(reply) == 'table' and reply.err or tostring(reply)
end

-- Those of some ids that belong to dead processes: to the process of one that was silent for too
-- long, and nobody listens on their channel. A living process always does, so one that only
-- forgot a claim, or left it to its silence, loses no other.
local function of_dead_processes(silent, ids)
  local suspects, gone, found = {}, {}, {}
  for _, id in ipairs(silent) do
    suspects[string.match(id, '^sw%-([^-]+)x%d+%-') or client_of(id) or ''] = true
  end
  suspects[''] = nil
  for _, id in ipairs(ids) do
    local client = client_of(id)
    if client and suspects[string.match(client, '^(.*)x%d+$') or client] then
      if gone[client] == nil then
        local listeners = redis.pcall('PUBSUB', 'NUMSUB', 'slotwise:' .. client)
        gone[client] = listeners[2] == 0  -- not if this user may not ask
      end
      if gone[client] and #found < AT_ONCE then found[#found + 1] = id end
    end
  end
  return found
end
