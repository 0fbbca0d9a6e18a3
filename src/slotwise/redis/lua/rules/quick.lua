-- rules/quick.lua: the common cases of request.lua and release.lua, in few commands: one path is
-- taken or released while nobody waits, nothing is closed, paused, frozen or past its deadline, and
-- no client is there that speaks only the document. Nil leaves a call to the rules, which isn't
-- reached otherwise: creating its functions costs more than all of this. It copies open, declare,
-- expire, hold, release and save of rules/state.lua for this case; the tests against the ledger go
-- through both. Numbers go to the server as they are, which is exact up to 2^53. Not a script.
-- include rules/base.lua
local quick = {}

-- Read the facts, and some more fields of state, which begin at 12; nil if this isn't the case.
local function quick_facts(...)
  local facts = call('HMGET', KEYS[1], '.special', '.values', '.life', '.interval', '.waits',
                           '.held', '.timed', '.shape', '.declared', '.ticket', '.token', ...)
  if facts[1] or not (facts[2] and facts[3] and facts[4]) or facts[5] then return nil end
  if #KEYS == 7 and call('EXISTS', KEYS[3], KEYS[5]) > 0 then return nil end
  return facts
end

local function quick_expire(key, end_us)
  if call('PTTL', key) ~= -1 then return end
  set_clock(ARGV[1])
  call('PEXPIRE', key, math.max(math.ceil((end_us - now_us) / 1000), 1))
end

-- The record of a rate after some units were taken, whether there was enough, and what is taken of
-- the burst now; nil for a bucket that is not known, or too soon forgotten.
local function quick_charge(text, record, units, end_us)
  local gain, unit, burst = text:match('^(%d+)/(%d+)/(%d+)/')
  local level, at = string.match(record or '', '^0 0 %- %- 1 (%-?%d+) (%d+)$')
  if not level or units > burst + 0 then return nil end
  local full = burst * unit
  local gained = (now_us - at) * gain
  level = level + 0
  if gained > 0 and level < full then
    level = gained >= full - level and full or level + gained
  end
  if units * unit > level then return record, false, burst - math.floor(level / unit) end
  level = level - units * unit
  if (full - level) / gain > end_us - now_us - 2000000 then return nil end
  return string.format('0 0 - - 1 %d %d', level, now_us), true
end

-- Take the lowest number of a node that is free: it, the highest there has been, the record that it
-- is taken from, and what is left of that; nil if that is not known.
local function quick_number(name, held, top)
  if top <= held then return top + 1, top + 1 end
  local record = first_of(KEYS[6], name)
  local low, high = string.match(record or '', ' (%d+)%-?(%d*)$')
  low = tonumber(low)
  if not low then return nil end
  high = tonumber(high) or low
  return low, top, record, high > low and number_range(name, low + 1, high)
end

-- Grant one request: the reply, or nil if that is left to the rules.
function quick.request()
  local word, id, path, ttl, interval = ARGV[7], ARGV[12], ARGV[13], ARGV[6], tonumber(ARGV[5])
  if #ARGV ~= 13 or ARGV[8] ~= '' or word:find('shed', 1, true)
      or word:byte() == 114 or (#KEYS == 14 and ARGV[11]:find('=', 1, true)) then
    return nil
  end
  local names = {}
  for name in path:gmatch('[^,]+') do names[#names + 1] = name end
  local facts = quick_facts(unpack(names))
  if not facts or facts[8] ~= ARGV[3] or facts[9] ~= ARGV[4] then return nil end
  set_clock(ARGV[1])
  local end_us, most = tonumber(facts[3]), tonumber(facts[4])
  if not (most and end_us) or interval > most or end_us < now_us + most * 1000000 then
    return nil
  end
  local changes, at, tier, settle, needs = {}, 0, 0, 60000000, needs_of(id)
  local widest, widest_held, widest_top, widest_value, own
  for text in facts[2]:gmatch('[^,]+') do
    tier = tier + 1
    local name, record, need = names[tier], facts[11 + tier], needs and needs[tier] or 1
    if text:find('/', 1, true) then
      local after, is_enough, taken = quick_charge(text, record, need, end_us)
      if is_enough == false and word == 'try' and #names == 1 then
        return {'busy', name, text, taken, 0}
      end
      if not is_enough then return nil end
      settle = math.max(settle, tonumber(text:match('(%d+)$')))
      changes[at + 1], changes[at + 2] = name, after
    else
      local held, value, top = string.match(record or '0 0 - - 0', '^(%d+) 0 (%S+) %- (%d+)$')
      if not held or need ~= 1 then return nil end
      own, held = value, tonumber(held)
      value = tonumber(value) or tonumber(value:match('^~(%d+)$') or text)
      if not value or (value > 0 and held >= value) or value > 2^53 then return nil end
      changes[at + 1], changes[at + 2] = name, held + 1 .. ' 0 ' .. own .. ' - ' .. top
      widest, widest_held, widest_top, widest_value = at + 2, held, tonumber(top), value
    end
    at = at + 2
  end
  if tier ~= #names then return nil end
  local ticket, token = tonumber(facts[10] or 0), tonumber(facts[11] or 0)
  if not (ticket < now_us + 10^14 and token < now_us + 10^14) then return nil end
  ticket, token = math.max(ticket + 1, now_us), math.max(token + 1, now_us)
  if not widest then
    if end_us < now_us + settle + 1000000 then return nil end
    note_taken(1, settle, id, path, charges_in(id, tier))
    call('HSET', KEYS[1], '.ticket', ticket, '.token', token, unpack(changes))
    return {'granted', 0, token}
  end
  local held, now_s = call('ZCARD', KEYS[2]), now_us / 1000000
  if held ~= tonumber(facts[6] or 0)
      or #KEYS == 7 and held ~= widest_held  -- other clients hold something
      or held > 0 and call('ZRANGEBYSCORE', KEYS[2], '-inf', now_s, 'LIMIT', 0, 1)[1]
      or facts[7] and call('ZRANGEBYSCORE', KEYS[4], '-inf', now_s, 'LIMIT', 0, 1)[1] then
    return nil
  end
  local number, top, record, rest = quick_number(changes[widest - 1], widest_held, widest_top)
  if not number or (widest_value > 0 and number > widest_value) then return nil end
  changes[widest] = widest_held + 1 .. ' 0 ' .. own .. ' - ' .. top
  call('ZADD', KEYS[2], (now_us + interval * 1000000) / 1000000, id)
  if held == 0 then
    call('PEXPIRE', KEYS[2], math.max(math.ceil((end_us - now_us) / 1000), 1))
  end
  if record then call('ZREM', KEYS[6], record) end
  if rest then
    call('ZADD', KEYS[6], 0, rest)
    quick_expire(KEYS[6], end_us)
  end
  if ttl ~= '-' then
    call('ZADD', KEYS[4], (now_us + ttl * 1000000) / 1000000, id)
    if not facts[7] then quick_expire(KEYS[4], end_us) end
    changes[at + 1], changes[at + 2] = '.timed', (facts[7] or 0) + 1
  end
  local claim = string.format('%s %s %d %s %d %d %s %s', ARGV[5], ttl, ticket, now_text, number,
                              token, path, ARGV[9])
  call('HSET', KEYS[1], '.ticket', ticket, '.token', token, '.held', held + 1, id, claim,
             unpack(changes))
  return {'granted', number, token, #KEYS == 7 and widest_value or nil}
end

-- Release one path: the reply, or nil if that is left to the rules.
function quick.release()
  local item = ARGV[6]
  local space = item:find(' ', 1, true)
  local id = space and item:sub(1, space - 1) or item
  if #ARGV ~= 6 or ARGV[5] ~= '' or item:byte() == 126
      or item:find('=', 1, true) then
    return nil
  end
  local facts = quick_facts(id, '0:', '%0:')
  local ttl, granted, number, path =
    string.match(facts and facts[12] or '', '^%S+ (%S+) %d+ ([%d.]+) (%d+) %d+ (%S+) ')
  if not ttl or path:find('*', 1, true) then return nil end
  local end_us, held_in_all = tonumber(facts[3]), tonumber(facts[6])
  local adapts, has_rates = facts[2]:find('_', 1, true), facts[2]:find('/', 1, true)
  if adapts or has_rates or ttl ~= '-' then set_clock(ARGV[1]) end
  if not held_in_all or (ttl ~= '-' and granted + ttl <= now) then return nil end
  local names, records = {'0:'}, {facts[13], facts[14]}
  if path ~= '0:' then
    local fields = {}
    names = {}
    for name in path:gmatch('[^,]+') do names[#names + 1] = name end
    for i, name in ipairs(names) do
      fields[i], fields[#names + i] = name, adapts and '%' .. name or nil
    end
    records = call('HMGET', KEYS[1], unpack(fields))
  end
  local changes, idle, at, tier, needs, settle = {}, {id}, 0, 0, needs_of(id), nil
  local widest, left_there, top, own
  for text in facts[2]:gmatch('[^,]+') do
    tier = tier + 1
    local name, record = names[tier], records[tier]
    if text:find('/', 1, true) then
      settle = math.max(settle or 60000000, tonumber(text:match('(%d+)$')))
    else
      local held
      held, own, top = string.match(record or '', '^(%d+) 0 (%S+) %- (%d+)$')
      held = tonumber(held) or 0
      if held == 0 or (needs and needs[tier] ~= 1) or (#KEYS == 7 and held ~= held_in_all) then
        return nil
      end
      if text:find('_', 1, true) then
        local its, window = string.match(records[#names + tier] or '', '^%d+;([^;]*);(.*)$')
        local counted = window and name == tier - 1 .. ':'
          and count_in_window(window, space and item or ' i-', (space or 1) + 1, granted, now_us)
        if not counted then return nil end
        changes[at + 1], changes[at + 2] = '%' .. name, whole(now_us) .. ';' .. its .. ';'
          .. counted
        at = at + 2
      end
      widest, left_there = name, held - 1
      if held == 1 and not tonumber(own) then  -- "-", or "~3": a key has it from its first request
        idle[#idle + 1] = name
      else
        changes[at + 1], changes[at + 2] = name, held - 1 .. ' 0 ' .. own .. ' - ' .. top
        at = at + 2
      end
    end
  end
  if not widest or (settle and end_us < now_us + settle + 1000000)
      or call('ZREM', KEYS[2], id) == 0 then
    return nil
  end
  if left_there > 0 then
    call('ZADD', KEYS[6], 0, number_range(widest, number, number))
    quick_expire(KEYS[6], end_us)
  else
    if tonumber(top) > 1 then
      call('ZREMRANGEBYLEX', KEYS[6], '[' .. widest .. ' ', '(' .. widest .. '!')
    end
    if tonumber(own) then changes[at] = '0 0 ' .. own .. ' - 0' end
  end
  local function write_count(field, count)
    if count <= 0 then
      idle[#idle + 1] = field
    else
      changes[at + 1], changes[at + 2], at = field, count, at + 2
    end
  end
  write_count('.held', held_in_all - 1)
  if ttl ~= '-' then
    call('ZREM', KEYS[4], id)
    write_count('.timed', (facts[7] or 1) - 1)
  end
  if at > 0 then call('HSET', KEYS[1], unpack(changes)) end
  call('HDEL', KEYS[1], unpack(idle))
  if settle then note_taken(1, settle, id, path, charges_in(id, tier)) end
  return {'1'}
end
