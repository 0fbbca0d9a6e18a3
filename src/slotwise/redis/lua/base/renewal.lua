-- base/renewal.lua: renew the deadlines of a whole process in few calls. Not a script.

-- The heartbeats of several names, each with this many keys: the replies of `renew_name` for each,
-- which is called with the numbers of the first key and the first argument of a name. A damaged name
-- does not affect the others. `first_written` is the first key that a script writes.
local function renew_names(renew_name, keys_each, first_written)
  local full = begin_though_full(first_written)
  local replies, at = {}, 3
  for first = 1, #KEYS, keys_each do
    local reply, why = guarded(renew_name, first, at)
    replies[#replies + 1] = reply or {-1, 'failed ' .. why}
    at = at + 4 + ARGV[at + 2] + ARGV[at + 3]
  end
  if full then table.insert(replies[1], 'full') end
  return replies
end

-- Which of ids[first] .. ids[last] are in a sorted set, as a set.
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
  for from = 1, #members, CHUNK do
    local words = {'ZADD', key}
    for i = from, math.min(from + CHUNK - 1, #members) do
      words[#words + 1] = deadline
      words[#words + 1] = members[i]
    end
    redis.call(unpack(words))
  end
end

-- After the clock stepped back, dead members have later deadlines than any living one could have.
local function clamp(key, longest)
  local latest = tonumber(redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')[2])
  if not latest or latest <= now + 1.25 * longest then return end
  local beyond = '(' .. seconds(now + 1.25 * longest)
  renew(key, redis.call('ZRANGEBYSCORE', key, beyond, '+inf', 'LIMIT', 0, AT_ONCE), seconds(now + longest))
end
