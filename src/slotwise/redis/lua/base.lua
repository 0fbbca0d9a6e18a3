-- base.lua: what the scripts of semaphores and those of paths have in common: numbers as text, a
-- server that is full, a name that is spoilt, a process that died. Not a script: scripts.py puts it in place of the
-- line "-- include base.lua".
local function seconds(number) return string.format('%.6f', number) end
local function whole(number) return string.format('%d', number) end  -- exact up to 2^53, as all of them are

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

local AT_ONCE = 200     -- how many a call buries, or serves: some 5 ms in which nobody else is served
local LOOKED_AT = 1000  -- how many claims are looked at for those of a process that died

-- Those of some ids that belong to dead processes: to the process of one that was silent for too
-- long, and nobody listens on their channel. A living process always does, so one that only
-- forgot a claim, or left it to its silence, loses no other.
local function of_dead_processes(silent, ids)
  local suspects, gone, found = {}, {}, {}
  for _, id in ipairs(silent) do
    suspects[string.match(id, '^sw%-([^-]+)x%d+%-') or string.match(id, '^sw%-([^-]+)%-') or ''] = true
  end
  suspects[''] = nil
  for _, id in ipairs(ids) do
    local seat = string.match(id, '^sw%-([^-]+)%-')
    if seat and suspects[string.match(seat, '^(.*)x%d+$') or seat] then
      if gone[seat] == nil then
        local listeners = redis.pcall('PUBSUB', 'NUMSUB', 'slotwise:' .. seat)
        gone[seat] = listeners[2] == 0  -- not if this user may not ask
      end
      if gone[seat] and #found < AT_ONCE then found[#found + 1] = id end
    end
  end
  return found
end
