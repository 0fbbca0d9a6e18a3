-- semaphore/numbers.lua: the slot numbers of a semaphore: a grant gets the lowest that are free. Part of semaphore/rules.lua; not
-- a script.

local function free_numbers(text)
  -- Without the key the other numbers are unknown: it will be rebuilt from the claims that are
  -- left.
  if text == '0' or redis.call('EXISTS', numbers) == 0 then return end
  for low, high in each_range(text) do redis.call('ZADD', numbers, low, range(low, high)) end
end

-- Take the lowest free numbers, none above the value: like "1-3,7", and the first.
-- Nil if there are too few, or if they are unknown.
local function take_numbers(count, value)
  local taken, used, top, rest_low, rest_high = {}, 0, nil, nil, nil
  local function take(low, high)
    local last = taken[#taken]
    if last and last[2] + 1 == low then last[2] = high else taken[#taken + 1] = {low, high} end
    count = count - (high - low + 1)
  end
  while count > 0 do
    local found = redis.call('ZRANGE', numbers, used, used + math.min(count, CHUNK) - 1)
    if #found == 0 then return nil end
    for _, member in ipairs(found) do
      if count == 0 then break end
      if member == 'top' then
        top = tonumber(redis.call('ZSCORE', numbers, 'top'))
        local low = top + 1
        top = top + count
        take(low, top)
      else
        local low, high = each_range(member)()
        if low < 1 then return nil end  -- garbage
        local last = math.min(high, low + count - 1)
        take(low, last)
        used = used + 1
        if last < high then rest_low, rest_high = last + 1, high end
      end
    end
  end
  if taken[#taken][2] > value then return nil end
  if used > 0 then redis.call('ZREMRANGEBYRANK', numbers, 0, used - 1) end
  if rest_low then redis.call('ZADD', numbers, rest_low, range(rest_low, rest_high)) end
  if top then redis.call('ZADD', numbers, top, 'top') end
  local texts = {}
  for i, each in ipairs(taken) do texts[i] = range(each[1], each[2]) end
  return table.concat(texts, ','), taken[1][1]
end

-- What is in numbers while they are counted: COUNTING, so that nobody takes one, and a record for each range that is taken.
local COUNTING, TAKEN = 'counting', 't'

-- The next holders: their ids, where to go on, and how many members that were.
local function some_holders(cursor)
  local found, ids = redis.call('ZSCAN', main, cursor, 'COUNT', math.ceil(REBUILT / 3)), {}
  for i = 1, #found[2], 2 do
    local member = found[2][i]
    if string.sub(member, 1, 3) == 'sw-' and not string.find(member, '#', 1, true) then ids[#ids + 1] = member end
  end
  return ids, found[1], #found[2] / 2
end

-- Note the numbers of some holders; false if one of ours holds slots without a claim, so that its numbers are unknown.
local function note_taken(ids, is_check)
  local taken = {}
  for _, claim in ipairs(#ids > 0 and redis.call('HMGET', state, unpack(ids)) or {}) do
    local text = numbers_in(claim)
    if not text then return false end
    if not is_check and text ~= '0' then
      for low, high in each_range(text) do
        taken[#taken + 1], taken[#taken + 2] = low, TAKEN .. range(low, high)
      end
    end
  end
  call_in_chunks(taken, 'ZADD', numbers)
  return true
end

-- Replace the next records of what is taken by what is free between them. Returns where to go on, nil at the end, the
-- highest number so far, and how many records that were.
local function replace_taken(after, top)
  local most = 2 * REBUILT
  local found = redis.call('ZRANGEBYSCORE', numbers, '(' .. after, '+inf', 'WITHSCORES', 'LIMIT', 0, most)
  local last = #found
  -- A range that was released meanwhile has two records with one score, which belong together.
  while #found == 2 * most and last > 0 and found[last] == found[#found] do last = last - 2 end
  if last == 0 then last = #found end
  local seen, free, is_free = {}, {}, {}
  for i = 1, last, 2 do
    local record = found[i]
    seen[#seen + 1], after = record, found[i + 1]
    if string.sub(record, 1, 1) ~= TAKEN then
      is_free[record] = true
    elseif not is_free[string.sub(record, 2)] then
      local low, high = each_range(string.sub(record, 2))()
      if low > top + 1 then free[#free + 1], free[#free + 2] = top + 1, range(top + 1, low - 1) end
      top = math.max(top, high)
    end
  end
  call_in_chunks(seen, 'ZREM', numbers)
  call_in_chunks(free, 'ZADD', numbers)
  return #found == 2 * most and after or nil, top, #seen
end

-- Count for as long as a call may. True at the end, false if it can't be known which numbers are taken, else nil.
local function count_some(step, place, top)
  local left = REBUILT
  if step ~= 'check' and not redis.call('ZSCORE', numbers, COUNTING) then step, place = 'check', '0' end  -- it was lost
  while left > 0 do
    if step == 'replace' then
      local after, seen
      after, top, seen = replace_taken(place, top)
      left = left - seen / 2
      if not after then
        redis.call('ZREM', numbers, COUNTING)
        redis.call('ZADD', numbers, top, 'top')
        redis.call('PEXPIRE', numbers, math.max(redis.call('PTTL', state), 60000))
        redis.call('HDEL', state, '.rebuild', '.orphans')
        return true
      end
      place = after
    else
      local ids, cursor, passed = some_holders(place)
      if not note_taken(ids, step == 'check') then
        if redis.call('EXISTS', state) == 1 then
          redis.call('HSET', state, '.orphans', '1')
          redis.call('HDEL', state, '.rebuild')
        end
        return false
      end
      left, place = left - #ids - passed * REBUILT / SLOTS_REBUILT / 2, cursor
      if place == '0' and step == 'check' then
        step = 'note'
        repairs.unlink(numbers)
        redis.call('ZADD', numbers, 0, COUNTING)
      elseif place == '0' then
        step, top = 'replace', 0
      end
    end
  end
  if step ~= 'check' then redis.call('PEXPIRE', numbers, math.max(redis.call('PTTL', state), 60000)) end
  redis.call('HSET', state, '.rebuild', step .. ' ' .. place .. ' ' .. whole(top))
  redis.call('HDEL', state, '.life')  -- without it, the fast halves of the scripts grant nothing
  outlive(state, 60)
  rebuilding = true
end

-- Find out from the claims which numbers are taken: true if that is known now. With very many holders each call does a part of
-- it, and nobody is granted anything meanwhile: check that all holders have a claim, note what is taken in the key itself, and
-- replace that by what is free. Those that are released meanwhile are added as free ones, as ever.
recount = function()
  if rebuilding then return false end
  return count_some('check', '0', 0) or false
end

-- Give numbers to a claim that there are slots for; false if there are none for it.
local function allot(id, claim, value)
  local text, first = take_numbers(slots_of(id), value)
  -- More numbers are taken than slots are held: a key was lost, or foreign clients removed some.
  if not text and recount() then text, first = take_numbers(slots_of(id), value) end
  if not text then return false end
  claim.numbers, claim.number = text, first
  return true
end
