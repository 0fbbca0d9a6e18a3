-- semaphore/repair.lua: make keys anew that were evicted, and forget what clients of the documented protocol have removed. Part of
-- semaphore/rules.lua; not a script.

-- Rebuild a sorted set from scores and members, in few calls. It lives at least until `latest` (s).
local function refill(key, entries, latest)
  call_in_chunks(entries, 'ZADD', key, 'NX')
  outlive(key, math.max(latest - now, 1))
end

-- How many claims there are: the fields that are not facts.
local function count_claims()
  local claims = redis.call('HLEN', state)
  for _, fact in ipairs(redis.call('HMGET', state, unpack(FACTS))) do
    if fact then claims = claims - 1 end
  end
  return claims
end

-- Which of main, waiting and waiting_heartbeat were evicted: they are missing, though claims say
-- that they should exist. As letters: m, w and h.
local function evicted_keys()
  local claims = count_claims() - (tonumber(redis.call('HGET', state, '.surplus')) or 0)
  local held, waits, heard = redis.call('ZCARD', main), redis.call('ZCARD', waiting), redis.call('ZCARD', waiting_heartbeat)
  local lost = ''
  if held == 0 and claims > math.max(waits, heard) then lost = 'm' end
  if waits == 0 and (heard > 0 or claims > held) then lost = lost .. 'w' end
  if heard == 0 and (waits > 0 or claims > held) then lost = lost .. 'h' end
  return claims > 0 and lost or ''
end

-- Those who wait and have no claim, since they know only the documented keys, are in one of these two.
local function put_foreigners_back(lost)
  local key, left = waiting, waiting_heartbeat
  if not string.find(lost, 'w', 1, true) then key, left = left, key end
  local entries = {}
  for _, id in ipairs(redis.call('ZRANGE', left, 0, PAGE - 1)) do
    if not client_of(id) then
      entries[#entries + 1] = key == waiting and now_text or seconds(now + 15)
      entries[#entries + 1] = id
    end
  end
  refill(key, entries, now + 15)
end

-- Restore the claims among some fields of state in the keys that were lost, except dead ones. A
-- claim that is not in main, though main was not lost, has ended. Returns how many slots were restored.
local function put_back(fields, lost)
  local facts = redis.call('HMGET', state, '.beat', '.closed')
  local beat_at, is_closed = tonumber(facts[1]) or 0, facts[2]  -- if it is closed, nobody waits
  local is_main_lost, is_queue_lost = string.find(lost, 'm', 1, true), string.find(lost, '[wh]')
  local held, members, places, heartbeats, dead, latest_holder, latest_waiter = {}, {}, {}, {}, {}, now, now
  local evicted = {}
  for i = 1, #fields, 2 do
    local id, interval, ticket, granted = fields[i], nil, nil, nil
    local is_fact = string.sub(id, 1, 1) == '.'
    if not is_fact then
      interval, ticket, granted = string.match(fields[i + 1], '^(%S+) %S+ (%S+) (%S+) ')
    end
    local is_held = granted ~= '0'
    if not is_fact and not (tonumber(interval) and tonumber(ticket)) then
      dead[#dead + 1] = id  -- garbage
    elseif not is_fact and is_held and not is_main_lost then
      held[#held + 1] = id
    elseif not is_fact and (is_held or is_queue_lost) then
      -- When its silence ends it, if it sent a heartbeat with the last one that came.
      local deadline = math.max(tonumber(granted) or 0, tonumber(ticket), beat_at) + interval
      local score = seconds(deadline)
      if deadline <= now or (is_closed and not is_held) then
        dead[#dead + 1] = id
        local claim = is_held and parse_claim(fields[i + 1])
        if claim then free_numbers(claim.numbers) end
      elseif is_held then
        for _, member in ipairs(members_of(id)) do
          members[#members + 1] = score
          members[#members + 1] = member
        end
        latest_holder = math.max(latest_holder, deadline)
        evicted[#evicted + 1] = id
      else
        places[#places + 1], places[#places + 2] = place_of(id, ticket), id
        heartbeats[#heartbeats + 1], heartbeats[#heartbeats + 2] = score, id
        latest_waiter = math.max(latest_waiter, deadline)
      end
    end
  end
  for from = 1, #held, CHUNK do
    local to = math.min(from + CHUNK - 1, #held)
    for i, score in ipairs(redis.call('ZMSCORE', main, unpack(held, from, to))) do
      if not score then dead[#dead + 1] = held[from + i - 1] end
    end
  end
  refill(main, members, latest_holder)
  if string.find(lost, 'w', 1, true) then refill(waiting, places, latest_waiter) end
  if string.find(lost, 'h', 1, true) then refill(waiting_heartbeat, heartbeats, latest_waiter) end
  call_in_chunks(dead, 'HDEL', state)
  call_in_chunks(dead, 'ZREM', ttls)
  call_in_chunks(dead, 'ZREM', waiting)
  call_in_chunks(dead, 'ZREM', waiting_heartbeat)
  have_checked(evicted, main)
  return #members / 2
end

-- Whether claims may have very many slots: then each is restored by itself.
local function is_wide()
  return (tonumber(redis.call('HGET', state, '.value') or nil) or 0) > SLOTS_REBUILT
end

-- Rebuild main, waiting or waiting_heartbeat if one was evicted. Holders are put back, so that
-- nobody gets their slots before they know, but they have lost them: a foreign client may have
-- removed the only one on purpose, which looks the same. Each call does a part of it; until it is
-- done, nobody is granted anything.
rebuild = function()
  local text = redis.call('HGET', state, '.rebuild') or ''
  local cursor, lost, filled = string.match(text, '^(%d+) (%a*),(%a*)$')
  for key in string.gmatch(evicted_keys(), '%a') do
    -- One that is lost meanwhile, or again after some were put back into it.
    if not cursor or not string.find(lost, key, 1, true) or string.find(filled, key, 1, true) then
      cursor, filled = '0', ''
      lost = string.gsub(lost or '', key, '') .. key
    end
  end
  if not cursor then
    local step, place, top = string.match(text, '^(%l+) (%S+) (%d+)$')
    if step then count_some(step, place, tonumber(top)) elseif text ~= '' then redis.call('HDEL', state, '.rebuild') end
    return
  end
  if string.find(text, '^%l') and redis.call('ZSCORE', numbers, COUNTING) then repairs.unlink(numbers) end  -- half counted
  if cursor == '0' then
    if string.find(lost, 'm', 1, true) then
      redis.call('HSET', state, '.evicted', now_text .. ' ' .. (redis.call('HGET', state, '.token') or '0'))
    end
    if lost == 'w' or lost == 'h' then put_foreigners_back(lost) end
  end
  local most = math.max(REBUILT * work_left / AT_ONCE, 10)  -- less for a heartbeat that renews many, or of many names
  local looked_at, steps, count = 0, 0, is_wide() and 1 or math.ceil(most / 4)
  repeat
    local found = redis.call('HSCAN', state, cursor, 'COUNT', count)
    local slots = put_back(found[2], lost)
    steps = steps + 1
    cursor, looked_at = found[1], looked_at + #found[2] / 2 + slots * REBUILT / SLOTS_REBUILT
  until cursor == '0' or looked_at >= most or steps > 2 * most
  rebuilding = cursor ~= '0'
  if not rebuilding then
    redis.call('HDEL', state, '.rebuild')
    -- Whatever is left over is not a claim: without this it would be searched for again and again.
    local surplus = count_claims() - redis.call('ZCARD', main) - redis.call('ZCARD', waiting)
    if surplus > 0 then redis.call('HSET', state, '.surplus', surplus) else redis.call('HDEL', state, '.surplus') end
    return
  end
  filled = ''
  for letter, key in pairs({m = main, w = waiting, h = waiting_heartbeat}) do
    if redis.call('EXISTS', key) == 1 then filled = filled .. letter end
  end
  redis.call('HSET', state, '.rebuild', cursor .. ' ' .. lost .. ',' .. filled)
  redis.call('HDEL', state, '.life')  -- without it, the fast halves of the scripts do nothing
end

-- Forget the ids that a client which knows no claims has removed.
local function mend(ids)
  if #ids == 0 then return end
  local found = false
  local held, queued = redis.call('ZMSCORE', main, unpack(ids)), redis.call('ZMSCORE', waiting, unpack(ids))
  for i, id in ipairs(ids) do
    if string.sub(id, 1, 1) ~= '.' and not held[i] and not queued[i] then
      drop(id)
      found = true
    end
  end
  if found then recount() end
end
