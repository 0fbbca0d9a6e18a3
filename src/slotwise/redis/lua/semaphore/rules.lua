-- semaphore/rules.lua: grant the slots of a semaphore: its keys, and who is served when. It is one
-- node of PathLedger (slotwise/_ledger/paths.py, which has the rules) in Lua. Not a script.
--
-- One semaphore is seven keys, in this order in KEYS:
--   main               zset  member -> deadline    documented
--   ttls               zset  id -> deadline        documented
--   max                str   the value             documented, for statistics
--   waiting            zset  id -> ticket          documented; of one with a head start, ticket less that
--   waiting_heartbeat  zset  id -> deadline        documented
--   state              hash  id -> its claim (base/claim.lua),
--                            and facts (FACTS): .value .values .token .closed .reason .interval,
--                            .beat, when the last heartbeat came, .evicted, when main was found lost, and
--                            the last token by then (clocks may be set back, tokens aren't): holders with
--                            earlier ones are told so by their next heartbeat, .until, until
--                            when (us) a closed one would have been known,
--                            .ticket, the last ticket, while somebody waits who came with a head start or after
--                            one: a score may be in the future then, and must not push later arrivals back,
--                            .hold, how long slots are held (base/hold_times.lua), and
--                            .life, until when (us) state, max and numbers live at least,
--                            .paused, "until seen" (us): until when nothing is granted, and the last time of the
--                            clock while that was so;
--                            if the value adapts, .values has its rules, "min max start window_us samples" or
--                            "min max start", and there are .adapt and .window (base/adaptation.lua,
--                            base/window.lua) and .changes, a line "at_us old new reason" for each;
--                            .rebuild: keys that were lost are being made anew, how far that has come, and
--                            which (rebuild, recount); .surplus: how many fields are neither claims nor facts that we know
--                            .orphans: somebody may hold slots whose claim was lost
--   numbers            zset  "top" -> the highest slot number in use so far, and below it the
--                            free ones: "low" or "low-high" -> low
-- The documented keys are the truth; state and numbers only add to them, and are
-- repaired when a client that does not know them has changed the others, or one was lost.
-- include base/base.lua
-- include base/claim_in_full.lua
-- include base/proof.lua
-- include base/renewal.lua
-- include base/hold_times.lua
-- include base/lists.lua
-- include base/window.lua
local main, ttls, max, waiting, waiting_heartbeat, state, numbers
local pattern, caller = '', nil  -- of foreign notification lists; the loop client that calls
local messages = {}              -- for the caller, behind the reply

local FACTS = {'.value', '.values', '.token', '.closed', '.reason', '.interval', '.beat', '.life', '.orphans',
               '.evicted', '.until', '.hold', '.ticket', '.rebuild', '.surplus', '.adapt', '.window', '.changes',
               '.paused'}
local USUAL_FACTS = 6  -- how many there usually are: .value .values .token .interval .beat .life
local ADAPTIVE_FACTS = 3  -- how many more there are if the value adapts: .adapt .window .changes
local rebuild  -- a function, below
local recount             -- a function, below
local REBUILT = 150       -- how many claims a call restores in lost keys, or looks at for their numbers
local SLOTS_REBUILT = 1500  -- how many slots of them, and how many members it passes over on the way
local rebuilding = false  -- whether that is not finished
local adaptation, is_adaptation_known = nil, false  -- that of this semaphore; nil if its value is fixed
local pause_us = 0        -- for how long this call was told to grant nothing
local work_left = AT_ONCE  -- how much this call may still do here: to end or refuse one costs 1, and to grant one GRANT
local GRANT, SLOTS = 2, 20  -- and this many slots of a wide one cost 1
local ended_ttls, silent_dropped = false, false  -- whether this call has done so

local function open(first, given_now)
  main, ttls, max, waiting = KEYS[first], KEYS[first + 1], KEYS[first + 2], KEYS[first + 3]
  waiting_heartbeat, state, numbers = KEYS[first + 4], KEYS[first + 5], KEYS[first + 6]
  set_clock(given_now)
  rebuilding, is_adaptation_known, ended_ttls, silent_dropped = false, false, false, false
  if redis.call('EXISTS', main, waiting, waiting_heartbeat) < 3 or redis.call('HEXISTS', state, '.rebuild') == 1 then
    rebuild()
  end
end

local function outlive(key, life)  -- EXPIRE never shortens a key's life
  local ms = math.ceil(life * 1000)
  local left = redis.call('PTTL', key)
  -- A little longer than asked for, so that most calls have nothing to do.
  if left ~= -2 and left < ms then redis.call('PEXPIRE', key, math.ceil(1.5 * ms)) end
end

-- Keep the semaphore closed for 30 days after the last call that found it closed.
local function keep_closed()
  for _, key in ipairs({state, max}) do
    if redis.call('PTTL', key) < CLOSED * 1000 then redis.call('PEXPIRE', key, CLOSED * 1000) end
  end
end

-- The reply to a refused request: "closed", and the reason if there is one.
local function closed_reply(reason)
  keep_closed()
  return {'closed', reason or nil}
end

local function slots_of(id)
  return tonumber(string.match(id, '^sw%-.*%*(%d+)$') or 1)
end

-- The head start (s) of an id like "sw-...^5000000*1", or with "n" before the microseconds a negative one.
local function head_start_of(id)
  local sign, us = string.match(id, '%^(n?)(%d+)%*%d+$')
  return us and tonumber(us) / (sign == 'n' and -1000000 or 1000000) or 0
end

-- The score in `waiting` of one with this ticket.
local function place_of(id, ticket)
  local head_start = head_start_of(id)
  return head_start == 0 and ticket or seconds(ticket - head_start)
end

local function id_of(member)
  return string.match(member, '^(sw%-.*%*%d+)#%d+$') or member
end

local function read_claim(id)
  return parse_claim(redis.call('HGET', state, id))
end

local function write_claim(id, claim, ...)
  redis.call('HSET', state, id, claim_text(claim.interval, claim.ttl, claim.ticket, claim.granted,
                                           claim.numbers, whole(claim.token), claim.owner), ...)
end

local function owner_of(id)
  return owner_in(redis.call('HGET', state, id))
end

-- Send a message to the process of an id, or put it behind the reply if that is the caller. `owner`
-- is that of its claim, or nil if it has none.
local function notify(id, owner, word, ...)
  local client = client_of(id)
  if not client then
    if word ~= 'granted' then return end
    local from, to = string.find(pattern, '@@@ACQUISITION_ID@@@', 1, true)
    if not from then return end
    local list = string.sub(pattern, 1, from - 1) .. id .. string.sub(pattern, to + 1)
    redis.call('RPUSH', list, '1')
    outlive(list, 60)
  else
    local message = table.concat({word, id, ...}, ' ')
    if client == caller then
      messages[#messages + 1] = message
    else
      redis.call('PUBLISH', 'slotwise:' .. client, proved(message, owner))
    end
  end
end

local unfinished = false  -- more to serve

-- The members of an acquisition in main, one for each slot, or some of them, added to a list.
local function members_of(id, first, last, members)
  members = members or {}
  for i = first or 1, last or slots_of(id) do members[#members + 1] = i == 1 and id or id .. '#' .. i end
  return members
end

-- include semaphore/numbers.lua

-- State was lost while somebody was there: heartbeats have to check whose claim is missing.
local function note_orphans()
  if redis.call('EXISTS', main, waiting) == 0 then return end
  local is_lost = redis.call('EXISTS', state) == 0
  redis.call('HSET', state, '.orphans', '1')
  if not is_lost then return end  -- or every heartbeat would cause others
  have_checked(redis.call('ZRANGE', main, 0, LOOKED_AT - 1), main)
  have_checked(redis.call('ZRANGE', waiting, 0, LOOKED_AT - 1), main)
end

-- Keep the permanent keys for another `life` seconds.
local function keep(life)
  local facts = redis.call('HMGET', state, '.life', '.value')
  if (tonumber(facts[1]) or 0) >= now_us + life * 1000000 then return end
  if facts[2] then redis.call('SET', max, facts[2], 'NX') end
  if rebuilding then
    for _, key in ipairs({state, max, numbers}) do outlive(key, 2 * life) end
    return
  end
  if redis.call('EXISTS', numbers) == 0 or redis.call('ZCARD', numbers) > 100 + 2 * redis.call('ZCARD', main) then
    recount()
  end
  for _, key in ipairs({state, max, numbers}) do outlive(key, 2 * life) end
  if rebuilding then return end
  redis.call('HSET', state, '.life', whole(now_us + 2 * life * 1000000))
end

-- Note that a hold ended: its length counts if somebody waits.
local function time_hold(claim, slots)
  local text = redis.call('HGET', state, '.hold')
  local granted = tonumber(claim.granted)
  if granted and granted > 0 and (times_all(text) or redis.call('EXISTS', waiting) == 1) then
    redis.call('HSET', state, '.hold', note_holds(text, {now - granted}, slots))
  end
end

-- include semaphore/adaptive.lua

-- Remove an acquisition from all keys; returns how many slots it held. The sample is for an
-- adaptive value, "expired" if its ttl has ended.
local function drop(id, sample)
  if id_of(id) ~= id then return 0 end  -- a part of an acquisition is not an acquisition
  local held = redis.call('ZREM', main, id)
  for from = 2, slots_of(id), CHUNK do
    local members = {}
    for i = from, math.min(from + CHUNK - 1, slots_of(id)) do members[#members + 1] = id .. '#' .. i end
    -- Either all its members are there or none: an id with a made-up number of millions delays
    -- nobody for long.
    local removed = redis.call('ZREM', main, unpack(members))
    if removed == 0 then break end
    held = held + removed
  end
  redis.call('ZREM', ttls, id)
  local claim = read_claim(id)
  if rebuilding and held == 0 and claim and claim.granted ~= '0' then held = slots_of(id) end  -- not put back yet
  -- If it had already ended, its numbers may belong to somebody else by now.
  if claim and held > 0 then
    free_numbers(claim.numbers)
    time_hold(claim, held)
    -- One that had none was kicked, and its grace is over.
    if sample == 'expired' then sample = claim.ttl == '-' and 'i-' or 'd-' end
    count_end(claim, held, sample)
  end
  redis.call('HDEL', state, id)
  work_left = work_left - 1 - held / SLOTS
  return held
end

local function leave_queue(id)
  redis.call('ZREM', waiting_heartbeat, id)
  return redis.call('ZREM', waiting, id)
end

-- Drop acquisitions whose time is up, as many as one call may: the next call continues.
local function drop_some(ids, sample)
  for _, id in ipairs(ids) do
    if work_left <= 0 then break end
    drop(id, sample)
  end
  save_adaptation()
end

local function end_ttls()
  if ended_ttls then return end
  ended_ttls = true
  drop_some(redis.call('ZRANGEBYSCORE', ttls, '-inf', now_text, 'LIMIT', 0, AT_ONCE), 'expired')
end

-- A waiter was silent for too long, or its process is dead.
local function drop_waiter(id)
  leave_queue(id)
  redis.call('HDEL', state, id)
  work_left = work_left - 0.5
end

local function drop_silent()
  if silent_dropped then return end
  silent_dropped = true
  local silent = redis.call('ZRANGEBYSCORE', main, '-inf', now_text, 'LIMIT', 0, AT_ONCE)
  local suspects = #silent > 0 and deaths.just_silent(main) or {}
  for i, member in ipairs(suspects) do suspects[i] = id_of(member) end
  local dropped = {}  -- one of n slots is n members, and all of them go with the first
  for _, member in ipairs(silent) do
    local id = id_of(member)
    if not dropped[id] and work_left > 0 then
      dropped[id] = true
      drop(id)
    end
    -- Foreign clients may have removed some of its members, and not all.
    if dropped[id] and id ~= member then redis.call('ZREM', main, member) end
  end
  local silent_waiters = redis.call('ZRANGEBYSCORE', waiting_heartbeat, '-inf', now_text, 'LIMIT', 0, AT_ONCE)
  if #silent_waiters > 0 then
    for _, id in ipairs(deaths.just_silent(waiting_heartbeat)) do suspects[#suspects + 1] = id end
  end
  for _, id in ipairs(silent_waiters) do
    if work_left <= 0 then break end
    drop_waiter(id)
  end
  if #suspects == 0 or work_left <= 0 then return end
  -- Whatever else a dead process has here goes with that, or each would keep its turn until its
  -- own time is up.
  local dead = deaths.claims(suspects, redis.call('ZRANGE', waiting, 0, SUSPECTED - 1), work_left)
  for _, id in ipairs(dead) do drop_waiter(id) end
  if work_left <= 0 then return end
  drop_some(deaths.claims(suspects, redis.call('ZRANGE', main, 0, SUSPECTED - 1), work_left))
end

-- include semaphore/repair.lua

-- Turn an id into a holder: members, ttl, token. `claim` has its numbers, and is nil for a
-- foreign one, which knows none of these and confirms by acquire.lua. `deadline` is when
-- its silence ends it, if that is known already.
local function hold(id, claim, stored_token, interval, deadline)
  interval = claim and tonumber(claim.interval) or interval
  local members, text = members_of(id), seconds(deadline or now + interval)
  if #members == 1 then
    add_members(main, redis.call('ZCARD', main), {text, id})
  else
    renew(main, members, text)
  end
  outlive(main, interval)
  if not claim then return end
  claim.token = math.max((tonumber(stored_token) or 0) + 1, now_us)
  claim.granted = now_text
  write_claim(id, claim, '.token', whole(claim.token))
  if claim.ttl ~= '-' then
    redis.call('ZADD', ttls, seconds(now + claim.ttl), id)
    outlive(ttls, claim.ttl + interval)
  end
end

-- Whether clients of the documented protocol hold something: every slot of ours has a number.
local function foreigners_hold()
  local held, taken = redis.call('ZCARD', main), tonumber(redis.call('ZSCORE', numbers, 'top')) or 0
  if held > taken then return true end
  local seen = redis.call('ZRANGE', numbers, 0, 99)
  for _, member in ipairs(seen) do
    if member ~= 'top' then
      local low, high = each_range(member)()
      taken = taken - (high - low + 1)
    end
  end
  return held > taken - (redis.call('ZCARD', numbers) - #seen)  -- the rest, one number each at least
end

-- Tell the waiters to check for themselves. One message per loop client is enough.
local function have_waiters_look()
  local warned = {}
  for _, id in ipairs(redis.call('ZRANGE', waiting, 0, AT_ONCE - 1)) do
    local client = client_of(id)
    if client and not warned[client] then
      warned[client] = true
      notify(id, nil, 'look')
    end
  end
end

-- Remove waiters from the queue and tell them why.
local function refuse(ids, ...)
  if #ids == 0 then return end
  local claims = redis.call('HMGET', state, unpack(ids))
  redis.call('ZREM', waiting, unpack(ids))
  redis.call('ZREM', waiting_heartbeat, unpack(ids))
  redis.call('HDEL', state, unpack(ids))
  for i, id in ipairs(ids) do notify(id, owner_in(claims[i]), ...) end
end

-- The semaphore is closed: refuse those who wait, some at a time.
local function refuse_waiters(reason)
  refuse(redis.call('ZRANGE', waiting, 0, math.max(math.floor(work_left), 1) - 1), 'closed', reason or nil)
  unfinished = redis.call('EXISTS', waiting) == 1
end

local function current_value()
  save_adaptation()
  return tonumber(redis.call('HGET', state, '.value')) or tonumber(redis.call('GET', max))
end

-- Whether none of the first holders and waiters is a client of the documented protocol.
local function are_all_ours()
  for _, key in ipairs({main, waiting}) do
    for _, id in ipairs(redis.call('ZRANGE', key, 0, LOOKED_AT - 1)) do
      if string.sub(id, 1, 3) ~= 'sw-' then return false end
    end
  end
  return true
end

-- The value of the semaphore for a caller that was made with `declared`, a number of slots or the rules of an adaptive
-- value; nil if it is in use with another. What is written is what it is from now on.
local function agree_on_value(declared, held, queued, interval)
  local facts = redis.call('HMGET', state, '.value', '.values', '.adapt')
  local value, values, is_used = tonumber(facts[1] or nil), facts[2], held + queued > 0
  local rules, wanted = rules_in(',' .. declared .. ','), ',' .. declared .. ','
  if not value and is_used then
    value = tonumber(redis.call('GET', max) or nil)  -- foreign clients were here first
  end
  if value and not values then  -- lost, or theirs
    -- An adaptive value may have been any. Those who bring their own can't share it.
    values = rules and are_all_ours() and wanted or ',' .. whole(value) .. ','
  end
  if not (value and values and string.find(values, wanted, 1, true)) then
    if value and is_used then return nil, value, rules_in(values) end
    value, values = tonumber(rules and string.match(rules, '^%S+ %S+ (%S+)') or declared), wanted
  end
  if values ~= facts[2] or tonumber(facts[1] or nil) ~= value then
    if not tonumber(facts[1] or nil) then note_orphans() end
    redis.call('HDEL', state, '.adapt', '.window', '.changes')
    redis.call('HSET', state, '.value', value, '.values', values)
    redis.call('SET', max, value, 'KEEPTTL')
    outlive(max, 4 * interval)
    facts[3], is_adaptation_known = false, false
  end
  if rules and not facts[3] then
    find_adaptation().is_changed = true
    save_adaptation()
    value = adaptation.limit
  end
  return value
end

-- Until when (us) nothing is granted, of what '.paused' says; nil if it is over, which is forgotten then. If the clock
-- was set back, so is its end: what was left of it is left.
local function paused_until(text)
  local until_us, seen = string.match(text or '', '^(%d+) (%d+)$')
  until_us, seen = tonumber(until_us), tonumber(seen)
  if until_us and seen > now_us then until_us = until_us - (seen - now_us) end
  if until_us and until_us > now_us then
    if math.abs(now_us - seen) > 100000 then redis.call('HSET', state, '.paused', whole(until_us) .. ' ' .. whole(now_us)) end
    return until_us
  end
  if text then redis.call('HDEL', state, '.paused') end
end

-- How many wait, for replies: a text "number ms" while nothing is granted for that long.
local function waiting_text(queued)
  local until_us = paused_until(redis.call('HGET', state, '.paused'))
  if not until_us then return queued end
  return whole(queued) .. ' ' .. whole(math.ceil((until_us - now_us) / 1000))
end

-- Grant nothing for that long (us); if there are several pauses, the one that ends last counts.
local function begin_pause(length_us, interval)
  local before = paused_until(redis.call('HGET', state, '.paused')) or 0
  redis.call('HSET', state, '.paused', whole(math.max(before, now_us + length_us)) .. ' ' .. whole(now_us))
  have_waiters_look()
  -- Not for longer, as `outlive` would have it: a pause may be one of weeks.
  local ms = math.ceil(length_us / 1000 + 4000 * interval)
  for _, key in ipairs({state, max}) do
    if redis.call('PTTL', key) < ms then redis.call('PEXPIRE', key, ms) end
  end
end

-- Hand free slots to the queue, strictly in order. The interval is for foreign waiters, which did
-- not leave their own.
local function serve(value, interval)
  if is_adaptation_known and adaptation and adaptation.is_changed then value = current_value() end
  if pause_us > 0 then
    begin_pause(pause_us, interval)
    pause_us = 0
  end
  if rebuilding then unfinished = true end
  if rebuilding or not value then return end
  local free = value - redis.call('ZCARD', main)
  if free <= 0 then return end
  local facts = redis.call('HMGET', state, '.closed', '.token', '.paused')
  if facts[1] or paused_until(facts[3]) then return end  -- nobody is granted anything
  local token = tonumber(facts[2]) or 0
  while free > 0 do
    local id = redis.call('ZRANGE', waiting, 0, 0)[1]
    if not id then return end
    if work_left <= 0 then
      -- The process of the next one will have the others served.
      if not unfinished then notify(id, owner_of(id), 'more') end
      unfinished = true
      return
    end
    local slots = slots_of(id)
    work_left = work_left - GRANT - slots / SLOTS
    local alive_until = tonumber(redis.call('ZSCORE', waiting_heartbeat, id) or 0)
    local alive = alive_until > now
    -- Nobody passes a head that does not fit: small requests would starve it.
    if alive and slots > free and slots <= value then return end
    if alive and slots > value then
      refuse({id}, 'refused', whole(value))  -- a resize was not finished
    elseif not alive then
      drop_silent()
      leave_queue(id)
      redis.call('HDEL', state, id)
      free = value - redis.call('ZCARD', main)
    else
      local claim = read_claim(id)
      if not claim and string.sub(id, 1, 3) == 'sw-' then
        -- Its claim was lost, but its place was not: it is asked to request again.
        if redis.call('EXISTS', state) == 1 then redis.call('HSET', state, '.orphans', '1') end
        notify(id, nil, 'look')
        return
      end
      if claim and not allot(id, claim, value) then
        if rebuilding then unfinished = true end
        return
      end
      local first_foreigner = not claim and not foreigners_hold()
      leave_queue(id)
      -- A grant is not a sign of life: a waiter that died blocks the others for no longer than if
      -- it had not been granted.
      hold(id, claim, token, interval, alive_until)
      if claim then
        token = claim.token
        notify(id, claim.owner, 'granted', whole(claim.number), whole(claim.token))
      else
        notify(id, nil, 'granted')
        if first_foreigner then have_waiters_look() end  -- it wakes nobody when it releases
      end
      free = free - slots
    end
  end
end

-- In how many ms the next deadline here is; -1 if there is none. Waiters come back then. -2: a
-- client that wakes nobody holds something, so they come back soon, and often.
local function next_end()
  if unfinished or rebuilding then return 0 end
  if foreigners_hold() then return -2 end
  local soonest
  for _, key in ipairs({main, ttls, waiting_heartbeat}) do
    local score = tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2])
    if score and (not soonest or score < soonest) then soonest = score end
  end
  local paused = paused_until(redis.call('HGET', state, '.paused'))
  if paused then soonest = math.min(soonest or math.huge, paused / 1000000) end
  if not soonest then return -1 end
  return math.max(math.ceil((soonest - now) * 1000), 0)
end
