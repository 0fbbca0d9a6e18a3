-- base/base.lua: what the scripts of semaphores and tiers share: the clock, a full server, a damaged
-- name, a dead process. Not a script:
-- _scripts.py puts it in place of the first line "-- include base/base.lua".
-- include base/clock.lua
local CHUNK = 1000      -- arguments of one call: Lua cannot unpack many more
local CLOSED = 30 * 24 * 3600  -- how long (s) a name stays closed after the last call that found it closed
local AT_ONCE = 100     -- how many a call drops, serves or refuses in total: about 3 ms in which nobody else is served
local PAGE = 500        -- how many claims a call lists or searches: about 2 ms
local LOOKED_AT = 1000  -- how many claims are searched for processes to be told something
-- What repairs are made with. REPLY is for a call that has done a part of something long, and nothing else: it is made again.
local repairs = {REPLY = 'REPAIRING part of a long call is done: ask again'}
local SUSPECTED = 400   -- how many claims are searched for those of a dead process

local now, now_text, now_us

local function set_clock(given)
  now_us = microseconds(given)
  now = tonumber(given) or now_us / 1000000
  now_text = seconds(now)
end

-- Call a command for a key, perhaps with one option, with as many arguments as there are, in calls of bounded size. Pairs
-- stay together.
local function call_in_chunks(arguments, command, key, option)
  for from = 1, #arguments, CHUNK do
    local to = math.min(from + CHUNK - 1, #arguments)
    if option then
      redis.call(command, key, option, unpack(arguments, from, to))
    else
      redis.call(command, key, unpack(arguments, from, to))
    end
  end
end

-- Begin to write on a server that may be at its maxmemory; returns whether it is. Such a server
-- refuses a script's first write if that may take memory, and no later one. Heartbeats and releases
-- take next to none, so they begin with a write that is never refused. Neither of the two writes
-- here changes anything.
local function begin_though_full(key)
  local refused = redis.pcall('ZADD', key, 'XX', 0, '')
  if type(refused) ~= 'table' or not string.find(refused.err or '', 'OOM', 1, true) then return false end
  redis.pcall('ZREM', key, '')
  return true
end

-- Remove keys without waiting until their memory is free, which takes milliseconds for very many members.
function repairs.unlink(...)
  local refused = redis.pcall('UNLINK', ...)
  if type(refused) == 'table' and refused.err then redis.call('DEL', ...) end  -- this user may not
end

-- Have the functions of a table made when the first of them is needed: each that is made costs every call, used or not.
local function made_when_needed(functions, make)
  setmetatable(functions, {__index = function(_, name)
    setmetatable(functions, nil)
    make()
    return functions[name]
  end})
end

-- Call a function; returns nil and the reason if it met a damaged key.
local function guarded(run, ...)
  local fine, reply = pcall(run, ...)
  if fine then return reply end
  return nil, type(reply) == 'table' and reply.err or tostring(reply)
end

-- Ask the processes of some ids to send their heartbeats of this name at once: something was lost, and the replies
-- tell them what. The message is only a hint, so it has no proof. It names the first key, not the ids: these may have
-- been released by the time it arrives.
local function have_checked(ids, first_key)
  local asked = {}
  for _, id in ipairs(ids) do
    local client = client_of(id)
    local process = client and (string.match(client, '^(.*)x%d+$') or client)
    if process and not asked[process] then
      asked[process] = true
      redis.call('PUBLISH', 'slotwise:' .. client, 'check ' .. first_key)
    end
  end
end

-- How processes are found dead.
local deaths = {prompt = 0.25, back = 3}  -- (s) how late that may be noticed; how long processes take to be back
made_when_needed(deaths, function()
  -- The members of a sorted set whose deadline has just passed: somebody comes back for each deadline while others
  -- wait. Those of before passed while nobody could reach the server, and their processes may not be back yet.
  function deaths.just_silent(key)
    return redis.call('ZRANGEBYSCORE', key, seconds(now - deaths.prompt), now_text, 'LIMIT', 0, AT_ONCE)
  end

  -- Whether the server has run for long enough that every living process listens again. The others end by their own
  -- deadlines until then.
  function deaths.are_others_back()
    if deaths.known == nil then
      local info = redis.pcall('INFO', 'server')
      local uptime = type(info) == 'string' and tonumber(string.match(info, 'uptime_in_seconds:(%d+)'))
      deaths.known = uptime and uptime >= deaths.back or false
    end
    return deaths.known
  end

  -- Return those of some ids, at most `most`, that belong to dead processes: a process is dead if it has just been silent for
  -- too long and does not listen on its channel any more. A living process listens, unless it has just lost its connection, so one
  -- that only forgot a claim, or left it to its silence, loses no other.
  function deaths.claims(silent, ids, most)
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
          gone[client] = listeners[2] == 0 and deaths.are_others_back()  -- not if this user may not ask
        end
        if gone[client] and #found < most then found[#found + 1] = id end
      end
    end
    return found
  end
end)
