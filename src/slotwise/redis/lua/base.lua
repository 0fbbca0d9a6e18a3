-- base.lua: what the scripts of semaphores and those of paths have in common: numbers as text, a
-- server that is full, a name that is spoilt. Not a script: scripts.py puts it in place of the
-- line "-- include base.lua".
local function seconds(number) return string.format('%.6f', number) end
local function whole(number) return string.format('%.0f', number) end

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
