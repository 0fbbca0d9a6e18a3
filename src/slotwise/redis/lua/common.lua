-- common.lua: the words that our own scripts are written in. Not a script: scripts.py
-- puts it in place of the line "-- include common.lua".
--
-- One semaphore is seven keys, in this order in KEYS:
--   main               zset  member -> deadline    documented
--   ttls               zset  id -> deadline        documented
--   max                str   the value             documented, for statistics
--   waiting            zset  id -> ticket          documented
--   waiting_heartbeat  zset  id -> deadline        documented
--   state              hash  id -> its claim, "interval ttl ticket granted numbers token who",
--                            and facts: .value .values .token .closed .closing .interval, and
--                            .life, until when (us) state, max and numbers live at least
--   numbers            zset  the slot numbers that our own holders have, and ".", so that
--                            the key does not come and go
-- The documented keys are the truth; state and numbers only add to them, and are
-- mended when a client that does not know them has changed the others.
-- include base.lua
-- include proof.lua
local main, ttls, max, waiting, waiting_heartbeat, state, numbers
local now, now_text, now_us
local pattern, caller = '', nil  -- of foreign notification lists; the caller's seat
local told = {}                  -- what the reply tells the caller's own seat

local function open(first, given_now)
  main, ttls, max, waiting = KEYS[first], KEYS[first + 1], KEYS[first + 2], KEYS[first + 3]
  waiting_heartbeat, state, numbers = KEYS[first + 4], KEYS[first + 5], KEYS[first + 6]
  now = tonumber(given_now)
  if now then
    now_us = math.floor(now * 1000000 + 0.5)
  else
    local time = redis.call('TIME')
    now_us = time[1] * 1000000 + time[2]
    now = now_us / 1000000
  end
  now_text = string.format('%.6f', now)
end

local function outlive(key, life)  -- EXPIRE never shortens a key's life
  local ms = math.ceil(life * 1000)
  local left = redis.call('PTTL', key)
  -- A little more than asked for, so that most calls find nothing to do.
  if left ~= -2 and left < ms then redis.call('PEXPIRE', key, math.ceil(1.5 * ms)) end
end

-- Keep the keys that do not come and go for another `life` seconds.
local function keep(life)
  local until_us = tonumber(redis.call('HGET', state, '.life') or 0) or 0
  if until_us >= now_us + life * 1000000 then return end
  redis.call('ZADD', numbers, 0, '.')
  for _, key in ipairs({state, max, numbers}) do outlive(key, 2 * life) end
  redis.call('HSET', state, '.life', whole(now_us + 2 * life * 1000000))
end

local function slots_of(id)
  return tonumber(string.match(id, '^sw%-.*%*(%d+)$') or 1)
end

local function id_of(member)
  return string.match(member, '^(sw%-.*%*%d+)#%d+$') or member
end

local function parse_claim(text)  -- nil for garbage too
  local interval, ttl, ticket, granted, numbers_text, token, who =
    string.match(text or '', '^(%S+) (%S+) (%S+) (%S+) ([%d,]+) (%d+) (.*)$')
  if not (tonumber(interval) and tonumber(ticket)) then return nil end
  return {
    interval = tonumber(interval), ttl = tonumber(ttl), ticket = ticket, granted = granted,
    numbers = numbers_text, number = tonumber(string.match(numbers_text, '^%d+')),
    token = tonumber(token), who = who,
  }
end

local function read_claim(id)
  return parse_claim(redis.call('HGET', state, id))
end

local function write_claim(id, claim, ...)
  redis.call('HSET', state, id, table.concat({
    tostring(claim.interval), claim.ttl and tostring(claim.ttl) or '-', claim.ticket,
    claim.granted, claim.numbers, whole(claim.token), claim.who,
  }, ' '), ...)
end

local function who_of(id)
  return string.match(redis.call('HGET', state, id) or '', '^%S+ %S+ %S+ %S+ %S+ %S+ (.*)$')
end

-- `who` is that of its claim, or nil if it has none.
local function tell(id, who, word, ...)
  local seat = string.match(id, '^sw%-([^-]+)%-')
  if not seat then
    if word ~= 'granted' then return end
    local from, to = string.find(pattern, '@@@ACQUISITION_ID@@@', 1, true)
    if not from then return end
    local list = string.sub(pattern, 1, from - 1) .. id .. string.sub(pattern, to + 1)
    redis.call('RPUSH', list, '1')
    outlive(list, 60)
  else
    local message = table.concat({word, id, ...}, ' ')
    if seat == caller then
      told[#told + 1] = message
    else
      redis.call('PUBLISH', 'slotwise:' .. seat, proved(message, who))
    end
  end
end

local AT_ONCE = 1000  -- how many dead ones a call buries: it pays for itself, and for no pause

-- Take an acquisition out of everything; how many slots it held.
local function drop(id)
  if id_of(id) ~= id then return 0 end  -- a part of somebody's acquisition is no acquisition
  local held = redis.call('ZREM', main, id)
  for i = 2, slots_of(id) do
    -- All its members are there or none: an id of made-up millions stops nobody for long.
    if redis.call('ZREM', main, id .. '#' .. i) == 0 then break end
    held = held + 1
  end
  redis.call('ZREM', ttls, id)
  local claim = read_claim(id)
  if claim then
    for number in string.gmatch(claim.numbers, '%d+') do redis.call('ZREM', numbers, number) end
  end
  redis.call('HDEL', state, id)
  return held
end

local function leave_line(id)
  redis.call('ZREM', waiting_heartbeat, id)
  return redis.call('ZREM', waiting, id)
end

local function end_ttls()
  local due = redis.call('ZRANGEBYSCORE', ttls, '-inf', now_text, 'LIMIT', 0, AT_ONCE)
  for _, id in ipairs(due) do drop(id) end
end

local function bury_silent()
  local silent = redis.call('ZRANGEBYSCORE', main, '-inf', now_text, 'LIMIT', 0, AT_ONCE)
  local dropped = {}  -- one of n slots is n members, and all of them go with the first
  for _, member in ipairs(silent) do
    local id = id_of(member)
    if not dropped[id] then
      dropped[id] = true
      drop(id)
    end
    -- Foreign clients may have removed some of its members, and not all.
    if id ~= member then redis.call('ZREM', main, member) end
  end
  silent = redis.call('ZRANGEBYSCORE', waiting_heartbeat, '-inf', now_text, 'LIMIT', 0, AT_ONCE)
  for _, id in ipairs(silent) do
    leave_line(id)
    redis.call('HDEL', state, id)
  end
end

-- Forget those of the ids that a client which knows no claims has removed.
local function mend(ids)
  for _, id in ipairs(ids) do
    if string.sub(id, 1, 1) ~= '.' and not redis.call('ZSCORE', main, id)
        and not redis.call('ZSCORE', waiting, id) then
      drop(id)
    end
  end
end

local function lowest_free_number()
  redis.call('ZADD', numbers, 0, '.')
  local taken = redis.call('ZCARD', numbers) - 1
  if taken == 0 then return 1 end
  if redis.call('ZCOUNT', numbers, 1, taken) == taken then return taken + 1 end
  local low, high = 1, taken  -- the first k of which fewer than k numbers are taken
  while low < high do
    local middle = math.floor((low + high) / 2)
    if redis.call('ZCOUNT', numbers, 1, middle) < middle then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end

local function take_number(value)
  local number = lowest_free_number()
  if number > value then
    mend(redis.call('HKEYS', state))
    number = lowest_free_number()
  end
  redis.call('ZADD', numbers, number, number)
  return number
end

-- Turn an id into a holder: members, numbers, ttl, token. `claim` is nil for a
-- foreign one, which knows none of these and confirms by acquire.lua. `freed` is
-- a number that is known to be the lowest free one, or nil. `deadline` is when
-- its silence ends it, if that is known already.
local function seat(id, claim, value, stored_token, interval, freed, deadline)
  local slots = slots_of(id)
  interval = claim and claim.interval or interval
  deadline = seconds(deadline or now + interval)
  redis.call('ZADD', main, deadline, id)
  for i = 2, slots do redis.call('ZADD', main, deadline, id .. '#' .. i) end
  outlive(main, interval)
  if not claim then return end
  if freed then
    claim.number = freed
    redis.call('ZADD', numbers, freed, freed)
  else
    claim.number = take_number(value)
  end
  local taken = {whole(claim.number)}
  for i = 2, slots do taken[i] = whole(take_number(value)) end
  claim.numbers = table.concat(taken, ',')
  claim.token = math.max((tonumber(stored_token) or 0) + 1, now_us)
  claim.granted = now_text
  write_claim(id, claim, '.token', whole(claim.token))
  if claim.ttl then
    redis.call('ZADD', ttls, seconds(now + claim.ttl), id)
    outlive(ttls, claim.ttl + interval)
  end
end

-- Whether clients of the documented protocol hold something: every slot of ours has a number.
local function foreigners_hold()
  return redis.call('ZCARD', main) > math.max(redis.call('ZCARD', numbers) - 1, 0)
end

-- A client that wakes nobody has begun to hold something: those who wait look for themselves
-- from now on. One message is enough for each seat.
local function warn_of_foreigners()
  local warned = {}
  for _, id in ipairs(redis.call('ZRANGE', waiting, 0, AT_ONCE - 1)) do
    local seat = string.match(id, '^sw%-([^-]+)%-')
    if seat and not warned[seat] then
      warned[seat] = true
      tell(id, nil, 'look')
    end
  end
end

local function current_value()
  return tonumber(redis.call('HGET', state, '.value')) or tonumber(redis.call('GET', max))
end

-- Hand what is free to the line, strictly in order. The interval is what a
-- foreign waiter is given, which did not leave its own. `freed` is the slot number
-- that was just given back, or nil.
local function settle(value, interval, freed)
  if not value then return end
  local free = value - redis.call('ZCARD', main)
  if free <= 0 then return end
  local facts = redis.call('HMGET', state, '.closing', '.token')
  if facts[1] then return end
  local token = tonumber(facts[2]) or 0
  local known = foreigners_hold()
  while free > 0 do
    local id = redis.call('ZRANGE', waiting, 0, 0)[1]
    if not id then return end
    local slots = slots_of(id)
    local alive_until = tonumber(redis.call('ZSCORE', waiting_heartbeat, id) or 0)
    local alive = alive_until > now
    -- Nobody passes a head that does not fit: small ones would starve it.
    if alive and slots > free then return end
    leave_line(id)
    if not alive then
      redis.call('HDEL', state, id)
    else
      local claim = read_claim(id)
      -- All numbers but the freed one are taken: no need to search.
      if not (free == 1 and freed and freed <= value
              and redis.call('ZCARD', numbers) == value) then
        freed = nil
      end
      -- A grant is no sign of life: one that died in line blocks the others
      -- for no longer than if it had stayed there.
      seat(id, claim, value, token, interval, freed, alive_until)
      freed = nil
      if claim then
        token = claim.token
        tell(id, claim.who, 'granted', whole(claim.number), whole(claim.token))
      elseif string.match(id, '^sw%-') then
        tell(id, nil, 'look')
      else
        tell(id, nil, 'granted')
        if not known then warn_of_foreigners() end
        known = true
      end
      free = free - slots
    end
  end
end

-- In how many ms somebody's time is up here; -1 if nobody's is. Those who wait
-- come back then. -2: a client that wakes nobody holds something, so they come back soon,
-- and often.
local function next_end()
  if foreigners_hold() then return -2 end
  local soonest
  for _, key in ipairs({main, ttls, waiting_heartbeat}) do
    local score = tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2])
    if score and (not soonest or score < soonest) then soonest = score end
  end
  if not soonest then return -1 end
  return math.max(math.ceil((soonest - now) * 1000), 0)
end
