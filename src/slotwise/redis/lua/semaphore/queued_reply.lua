-- semaphore/queued_reply.lua: whether requests may wait, and what the fast halves of request.lua and
-- request_many.lua reply to them then. Not a script.

-- Whether this many more may wait, by a word like "wait 5", which says how many at most. Whether
-- they will be served in time is not checked here.
local function may_queue(word, more)
  if string.sub(word, 1, 4) ~= 'wait' or string.find(word, 'shed', 1, true) then return false end
  local most = tonumber(string.match(word, '^wait (%d+)'))
  return not most or redis.call('ZCARD', KEYS[4]) + more <= most
end

local function queued_reply(value, held, now, interval, tell_due)
  -- All slots are held, but not all numbers: a client that knows none holds something.
  local lowest = redis.call('ZRANGE', KEYS[7], 0, 0, 'WITHSCORES')
  local taken = (tonumber(lowest[2]) or 1) - (lowest[1] == 'top' and 0 or 1)
  if held > taken then return {'queued', value, -2} end
  if not tell_due then return {'queued', value, -1} end
  local soonest = now + interval
  for _, key in ipairs({KEYS[1], KEYS[2], KEYS[5]}) do
    local score = tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2])
    if score and score < soonest then soonest = score end
  end
  return {'queued', value, math.max(math.ceil((soonest - now) * 1000), 0)}
end
