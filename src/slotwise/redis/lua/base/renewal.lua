-- base/renewal.lua: deadlines of a whole process, renewed in few calls. Not a script.

-- Those of ids[first] .. ids[last] that are in a sorted set, as a set.
local function present(key, ids, first, last)
  local found = {}
  for from = first, last, CHUNK do
    local to = math.min(from + CHUNK - 1, last)
    local scores = redis.call('ZMSCORE', key, unpack(ids, from, to))
    for i = 1, to - from + 1 do
      if scores[i] then found[ids[from + i - 1]] = true end
    end
  end
  return found
end

-- Give all members the same deadline.
local function renew(key, members, deadline)
  for from = 1, #members, CHUNK / 2 do
    local arguments = {}
    for i = from, math.min(from + CHUNK / 2 - 1, #members) do
      arguments[#arguments + 1] = deadline
      arguments[#arguments + 1] = members[i]
    end
    redis.call('ZADD', key, unpack(arguments))
  end
end

-- After the clock stepped back, the dead have deadlines that no living one could have.
local function clamp(key, longest)
  local latest = tonumber(redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')[2])
  if not latest or latest <= now + 1.25 * longest then return end
  local beyond = '(' .. seconds(now + 1.25 * longest)
  renew(key, redis.call('ZRANGEBYSCORE', key, beyond, '+inf', 'LIMIT', 0, AT_ONCE), seconds(now + longest))
end
