-- rules/quick.lua: the common cases of request.lua and release.lua, in few commands: one path is taken or released while
-- nobody waits, nothing is closed, paused, frozen or past its deadline, and no client is there that speaks only the
-- document. Nil leaves a call to the rules, which isn't reached otherwise: creating its functions costs more than all of
-- this. It copies open, declare, expire, hold, release and save of rules/state.lua for this case; the tests against the
-- ledger go through both. Not a script.
-- include rules/base.lua
local quick = {}
do  -- a script has room for 200 local names

local FACTS = {'.special', '.values', '.life', '.interval', '.waits', '.held', '.timed', '.shape', '.declared', '.ticket', '.token'}

-- Read the facts and some more fields of state. Returns them by place: the fields begin at 12. Nil if this isn't the case.
local function read(fields)
  local facts = redis.call('HMGET', KEYS[1], unpack(fields))
  if facts[1] or not facts[2] or facts[5] or not (facts[3] and facts[4]) then return nil end
  if #KEYS == 7 and redis.call('EXISTS', KEYS[3], KEYS[5]) > 0 then return nil end
  return facts
end

local function fields_with(...)
  local fields = {}
  for i = 1, 11 do fields[i] = FACTS[i] end
  for i = 1, select('#', ...) do fields[11 + i] = (select(i, ...)) end
  return fields
end

local function expire(key, life_us)
  if redis.call('PTTL', key) ~= -1 then return end
  redis.call('PEXPIRE', key, math.max(math.ceil((life_us - now_us) / 1000), 1))
end

-- Remember what was taken of rates, as buckets.remember does.
local function remember(id, path, tiers, settle_us, life_us)
  if life_us < now_us + settle_us + 1000000 then return false end
  local window = math.floor(now_us / settle_us)
  local key = KEYS[13 + window % 2]
  local charges = string.match(id, '%*([%d.]+)$') or string.sub(string.rep('.1', tiers), 2)
  redis.call('HSET', key, id, whole(now_us + settle_us) .. ' ' .. path .. ' ' .. charges)
  if redis.call('PTTL', key) == -1 then
    redis.call('PEXPIRE', key, math.ceil(((window + 2) * settle_us - now_us) / 1000))
  end
  return true
end

-- A time (us) in seconds, as text: "%.6f" of a double takes far longer.
local function text_of(us) return string.format('%d.%06d', us / 1000000, us % 1000000) end

-- The record of a rate after some units were taken, whether there was enough, and what is taken of the burst now; nil for a
-- bucket that is not known, or too soon forgotten.
local function charged(text, record, units, life_us)
  local gain, unit, burst = string.match(text, '^(%d+)/(%d+)/(%d+)/')
  local level, at = string.match(record or '', '^0 0 %- %- 1 (%-?%d+) (%d+)$')
  if not level then return nil end
  if units > burst + 0 then return nil end
  local full = burst * unit
  local gained = (now_us - at) * gain
  level = level + 0
  if gained > 0 and level < full then level = gained >= full - level and full or level + gained end
  if units * unit > level then return record, false, burst - math.floor(level / unit) end
  level = level - units * unit
  if (full - level) / gain > life_us - now_us - 2000000 then return nil end
  return string.format('0 0 - - 1 %d %d', level, now_us), true
end

-- Take the lowest number of a node that is free: it, and what is written for that; nil if that is not known.
local function take_number(name, held, top)
  if top <= held then return top + 1, top + 1 end
  local record = redis.call('ZRANGEBYLEX', KEYS[6], '[' .. name .. ' ', '(' .. name .. '!', 'LIMIT', '0', '1')[1]
  local low, high = string.match(record or '', ' (%d+)%-?(%d*)$')
  low = tonumber(low)
  if not low then return nil end
  high = tonumber(high) or low
  local rest = high > low and string.format('%s %016d', name, low + 1) .. (high > low + 1 and '-' .. whole(high) or '')
  return low, top, record, rest
end

-- Grant one request: the reply, or nil if that is left to the rules.
function quick.request()
  local word, is_line = ARGV[7], #KEYS == 7
  if #ARGV ~= 13 or ARGV[8] ~= '' or string.find(word, 'shed', 1, true) or string.byte(word) == 114
      or (not is_line and string.find(ARGV[11], '=', 1, true)) then
    return nil
  end
  local id, path, ttl, interval = ARGV[12], ARGV[13], ARGV[6], tonumber(ARGV[5])
  local names, fields = {}, fields_with()
  for name in string.gmatch(path, '[^,]+') do names[#names + 1], fields[#fields + 1] = name, name end
  local facts = read(fields)
  if not facts or facts[8] ~= ARGV[3] or facts[9] ~= ARGV[4] then return nil end
  set_clock(ARGV[1])
  local life_us, longest, needs = tonumber(facts[3]), tonumber(facts[4]), needs_of(id)
  if not (longest and life_us) or interval > longest or life_us < now_us + longest * 1000000 then return nil end
  local changes, count, tier, settle_us = {}, 0, 0, 60000000
  local widest, widest_held, widest_top, widest_value, own
  for text in string.gmatch(facts[2], '[^,]+') do
    tier = tier + 1
    local name, record, need = names[tier], facts[11 + tier], needs and needs[tier] or 1
    if string.find(text, '/', 1, true) then
      local after, is_enough, taken = charged(text, record, need, life_us)
      if is_enough == false and word == 'try' and #names == 1 then return {'busy', name, text, taken, 0} end
      if not is_enough then return nil end
      settle_us = math.max(settle_us, tonumber(string.match(text, '(%d+)$')))
      changes[count + 1], changes[count + 2] = name, after
    else
      local held, value, top = string.match(record or '0 0 - - 0', '^(%d+) 0 (%S+) %- (%d+)$')
      if not held or need ~= 1 then return nil end
      own, value, held = value, tonumber(value) or tonumber(string.match(value, '^~(%d+)$') or text), tonumber(held)
      if not value or (value > 0 and held >= value) or value > 2^53 then return nil end
      if is_line and held ~= tonumber(facts[6] or 0) then return nil end  -- other clients hold something
      changes[count + 1], changes[count + 2] = name, whole(held + 1) .. ' 0 ' .. own .. ' - ' .. top
      widest, widest_held, widest_top, widest_value = count + 2, held, tonumber(top), value
    end
    count = count + 2
  end
  if tier ~= #names then return nil end
  local ticket, token = tonumber(facts[10] or 0), tonumber(facts[11] or 0)
  if not (ticket < now_us + 10^14 and token < now_us + 10^14) then return nil end
  ticket, token = math.max(ticket + 1, now_us), math.max(token + 1, now_us)
  local token_text = whole(token)
  if not widest then
    if not remember(id, path, tier, settle_us, life_us) then return nil end
    redis.call('HSET', KEYS[1], '.ticket', whole(ticket), '.token', token_text, unpack(changes))
    return {'granted', 0, token}
  end
  local held = redis.call('ZCARD', KEYS[2])
  if held ~= tonumber(facts[6] or 0)
      or held > 0 and redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', text_of(now_us), 'LIMIT', '0', '1')[1]
      or facts[7] and redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', text_of(now_us), 'LIMIT', '0', '1')[1] then
    return nil
  end
  local name = changes[widest - 1]
  local number, top, record, rest = take_number(name, widest_held, widest_top)
  if not number or (widest_value > 0 and number > widest_value) then return nil end
  changes[widest] = whole(widest_held + 1) .. ' 0 ' .. own .. ' - ' .. whole(top)
  redis.call('ZADD', KEYS[2], text_of(now_us + interval * 1000000), id)
  if held == 0 then redis.call('PEXPIRE', KEYS[2], math.max(math.ceil((life_us - now_us) / 1000), 1)) end
  if record then redis.call('ZREM', KEYS[6], record) end
  if rest then
    redis.call('ZADD', KEYS[6], '0', rest)
    expire(KEYS[6], life_us)
  end
  if ttl ~= '-' then
    redis.call('ZADD', KEYS[4], text_of(now_us + tonumber(ttl) * 1000000), id)
    if not facts[7] then expire(KEYS[4], life_us) end
    changes[count + 1], changes[count + 2], count = '.timed', whole((facts[7] or 0) + 1), count + 2
  end
  redis.call('HSET', KEYS[1], '.ticket', whole(ticket), '.token', token_text, '.held', whole(held + 1), id,
             claim_text(ARGV[5], ttl, whole(ticket), text_of(now_us), whole(number), token_text, path, ARGV[9]), unpack(changes))
  return {'granted', number, token, is_line and widest_value or nil}
end

-- Release one path: the reply, or nil if that is left to the rules.
function quick.release()
  local item = ARGV[6]
  local space = string.find(item, ' ', 1, true)
  local id = space and string.sub(item, 1, space - 1) or item
  if #ARGV ~= 6 or ARGV[5] ~= '' or string.byte(item) == 126 or string.find(item, '=', 1, true) then return nil end
  local facts = read(fields_with(id, '0:'))
  local ttl, granted, number, path = string.match(facts and facts[12] or '', '^%S+ (%S+) %d+ ([%d.]+) (%d+) %d+ (%S+) ')
  if not ttl or string.find(path, '*', 1, true) then return nil end
  set_clock(ARGV[1])
  if ttl ~= '-' and granted + ttl <= now then return nil end
  local life_us, held_in_all = tonumber(facts[3]), tonumber(facts[6])
  local names, fields, records, values = {}, {}, {facts[13]}, facts[2]
  for name in string.gmatch(path, '[^,]+') do names[#names + 1] = name end
  local adapts = string.find(values, '_', 1, true)
  if path ~= '0:' or adapts then
    for i, name in ipairs(names) do fields[i], fields[#names + i] = name, adapts and '%' .. name or nil end
    records = redis.call('HMGET', KEYS[1], unpack(fields))
  end
  local changes, idle, tier, needs, widest, settle_us = {}, {id}, 0, needs_of(id), nil, nil
  local function put(field, text) changes[#changes + 1], changes[#changes + 2] = field, text end
  for text in string.gmatch(values, '[^,]+') do
    tier = tier + 1
    local name, record = names[tier], records[tier]
    if string.find(text, '/', 1, true) then
      settle_us = math.max(settle_us or 60000000, tonumber(string.match(text, '(%d+)$')))
    else
      local held, value, top = string.match(record or '', '^(%d+) 0 (%S+) %- (%d+)$')
      held = tonumber(held) or 0
      if held == 0 or (needs and needs[tier] ~= 1) or (#KEYS == 7 and held ~= held_in_all) then return nil end
      if string.find(text, '_', 1, true) then
        local its, window = string.match(records[#names + tier] or '', '^%d+;([^;]*);(.*)$')
        local counted = window and name == whole(tier - 1) .. ':'
          and count_in_window(window, space and item or ' i-', (space or 1) + 1, granted, now_us)
        if not counted then return nil end
        put('%' .. name, whole(now_us) .. ';' .. its .. ';' .. counted)
      end
      widest = {name, held - 1, top, value}
      if held == 1 and not tonumber(value) then  -- "-", or "~3": a key has it from its first request
        idle[#idle + 1] = name
      else
        put(name, whole(held - 1) .. ' 0 ' .. value .. ' - ' .. top)
      end
    end
  end
  if not widest or not held_in_all or (settle_us and life_us < now_us + settle_us + 1000000)
      or redis.call('ZREM', KEYS[2], id) == 0 then
    return nil
  end
  if ttl ~= '-' then
    redis.call('ZREM', KEYS[4], id)
    local timed = tonumber(facts[7] or 1) - 1
    if timed > 0 then put('.timed', whole(timed)) else idle[#idle + 1] = '.timed' end
  end
  local name, left, top, value = unpack(widest)
  if left > 0 then
    redis.call('ZADD', KEYS[6], '0', string.format('%s %016d', name, number))
    expire(KEYS[6], life_us)
  else
    if tonumber(top) > 1 then redis.call('ZREMRANGEBYLEX', KEYS[6], '[' .. name .. ' ', '(' .. name .. '!') end
    if tonumber(value) then changes[#changes] = '0 0 ' .. value .. ' - 0' end
  end
  if held_in_all > 1 then put('.held', whole(held_in_all - 1)) else idle[#idle + 1] = '.held' end
  if changes[1] then redis.call('HSET', KEYS[1], unpack(changes)) end
  redis.call('HDEL', KEYS[1], unpack(idle))
  if settle_us then remember(id, path, tier, settle_us, life_us) end
  return {'1'}
end
end
