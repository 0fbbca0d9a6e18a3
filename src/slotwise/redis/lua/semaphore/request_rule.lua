-- semaphore/request_rule.lua: one request in full, for request.lua and request_many.lua, whose
-- replies are those of request.lua. Not a script.
-- include semaphore/rules.lua
-- include semaphore/replace.lua
-- include semaphore/oldest_holders.lua
-- include semaphore/estimate.lua
local agreed  -- the value, once one request of this call has agreed on it: all of them have the same one, and the same interval
local function request(id, declared, interval, ttl, word, again, owner)
  caller, messages = client_of(id), {}

  local function answer(...)
    local reply = {...}
    for _, message in ipairs(messages) do reply[#reply + 1] = message end
    return reply
  end

  end_ttls()
  drop_silent()
  local facts = redis.call('HMGET', state, '.token', '.closed', '.reason', '.paused', '.ticket')
  local is_paused = paused_until(facts[4])
  local held, queued = redis.call('ZCARD', main), redis.call('ZCARD', waiting)

  -- One that is asked again may have been granted before the close.
  if facts[2] and not (again and redis.call('ZSCORE', main, id)) then
    if again and leave_queue(id) == 1 then redis.call('HDEL', state, id) end  -- close.lua was not finished
    return closed_reply(facts[3])
  end

  if not agreed then
    -- A full server refuses a newcomer here, before anything has changed (begin_though_full): once a write that takes no
    -- memory has passed, such as HDEL, it refuses none.
    if not again then redis.call('ZADD', main, 'XX', 0, '') end
    local value, other, other_rules = agree_on_value(declared, held, queued, interval)
    if not value then return {'conflict', other, held, queued, other_rules} end
    keep(interval)
    agreed = value
  end
  local value = agreed
  if rebuilding and word == 'try' then return redis.error_reply(repairs.REPLY) end
  if string.find(word, ' shed', 1, true) then
    local text = redis.call('HGET', state, '.hold')
    if not times_all(text) then redis.call('HSET', state, '.hold', estimates.time_all(text)) end
  end

  local slots = slots_of(id)
  if slots > value then return {'too many', value} end

  local function filed(ticket)
    return {
      interval = interval, ttl = ttl or '-', ticket = ticket, granted = '0', numbers = '0', token = 0, owner = owner,
    }
  end

  if again then
    local claim = read_claim(id)
    if claim and claim.granted ~= '0' and (rebuilding or redis.call('ZSCORE', main, id)) then
      return answer('granted', claim.number, claim.token, value)
    end
    local ticket = redis.call('ZSCORE', waiting, id) or rebuilding and claim and claim.ticket
    if ticket then
      if not claim then  -- its claim was lost, its place was not
        local head_start = head_start_of(id)
        write_claim(id, filed(head_start == 0 and ticket or seconds(tonumber(ticket) + head_start)))
        if held < value then serve(value, interval) end  -- nobody could be granted anything without it
      end
      return answer('queued', value, next_end())
    end
  end

  if queued > 0 and held < value then
    serve(value, interval)
    facts = redis.call('HMGET', state, '.token', '.closed', '.reason', '.paused', '.ticket')
    held, queued = redis.call('ZCARD', main), redis.call('ZCARD', waiting)
  end

  -- Once somebody has a head start, the last ticket is not that of the last one in the queue.
  local last = tonumber(facts[5] or nil)
  local keeps_ticket = queued > 0 and last or head_start_of(id) ~= 0
  if last and queued == 0 then
    redis.call('HDEL', state, '.ticket')
    last = nil
  end
  last = last or queued > 0 and tonumber(redis.call('ZREVRANGE', waiting, 0, 0, 'WITHSCORES')[2]) or nil
  local ticket = seconds(math.max(now, (last or 0) + 0.000001))
  local place = place_of(id, ticket)
  local is_first = queued == 0
  local replaces = string.sub(word, 1, 7) == 'replace'
  if not is_first and keeps_ticket and not replaces then
    is_first = tonumber(place) < tonumber(redis.call('ZRANGE', waiting, 0, 0, 'WITHSCORES')[2])
  end

  local claim = filed(now_text)
  if is_first and held + slots <= value and not rebuilding and not is_paused and allot(id, claim, value) then
    hold(id, claim, facts[1], interval)
    return answer('granted', claim.number, claim.token, value)
  end
  if replaces then
    local chosen, at_once = to_replace(slots, value, held, queued)
    if word == 'replace try' and not (at_once and #chosen > 0) then
      return answer('busy', value, held, waiting_text(queued), oldest_holders(held))
    end
    for _, each in ipairs(chosen) do kick(each, interval) end
    if not is_paused and redis.call('ZCARD', main) + slots <= value and allot(id, claim, value) then
      hold(id, claim, redis.call('HGET', state, '.token'), interval)
      serve(value, interval)
      return answer('granted', claim.number, claim.token, value)
    end
  elseif word == 'try' then
    return answer('busy', value, held, waiting_text(queued), oldest_holders(held))
  end
  local is_full = queued >= (tonumber(string.match(word, '^wait (%d+)')) or math.huge)
  local patience = tonumber(string.match(word, ' shed (%S+)$'))
  if is_full or patience then
    local expected = estimate(slots, value, held, queued)
    local is_late = not is_full and expected and expected > patience
    if is_full or is_late then
      return answer('full', value, held, waiting_text(queued), estimates.estimate_text(expected), is_late and 1 or 0)
    end
  end

  claim.ticket = ticket
  if keeps_ticket then redis.call('HSET', state, '.ticket', ticket) end
  redis.call('ZADD', waiting, replaces and seconds(ticket - HEAD_START) or place, id)
  redis.call('ZADD', waiting_heartbeat, seconds(now + interval), id)
  write_claim(id, claim)
  outlive(waiting, interval)
  outlive(waiting_heartbeat, interval)
  return answer('queued', value, next_end())
end
