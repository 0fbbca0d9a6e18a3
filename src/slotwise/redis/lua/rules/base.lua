-- rules/base.lua: the clock, and how numbers and ids are written. Not a script: _scripts.py puts it
-- in place of the first line that includes it.
local CHUNK = 1000     -- arguments of one command: Lua can't unpack many more
local AT_ONCE = 100    -- how many claims a call grants, ends or refuses: up to 4 ms for nobody else
local PAGE = 250       -- how many claims one call lists: about 2 ms

local call = redis.call
local now, now_text, now_us

local function seconds(number) return string.format('%.6f', number) end
local function whole(number) return string.format('%d', number) end  -- exact up to 2^53

-- Set the clock to a time (s), or to that of the server if it is empty.
local function set_clock(given)
  local given_s = tonumber(given)
  if given_s then
    now_us = math.floor(given_s * 1000000 + 0.5)
  else
    local time = call('TIME')
    now_us = time[1] * 1000000 + time[2]
  end
  now = given_s or now_us / 1000000
  now_text = string.format('%d.%06d', now_us / 1000000, now_us % 1000000)  -- faster than %.6f
end

-- What an id needs of each tier, narrow to wide, or nil for one slot of each. It stands at its end:
-- "*2.1.3".
local function needs_of(id)
  if not id:find('*', 1, true) then return nil end
  local needs = {}
  for need in string.gmatch(id:match('%*([%d.]+)$') or '', '%d+') do
    needs[#needs + 1] = tonumber(need)
  end
  return needs[1] and needs
end

-- What an id takes of each of so many tiers, as text.
local function charges_in(id, tiers)
  return id:match('%*([%d.]+)$') or string.sub(string.rep('.1', tiers), 2)
end

-- Remember what was taken of rates, for so long (us) or until then (us), so that it can be
-- corrected.
local function note_taken(first, settle, id, path, charges, until_us)
  local window = math.floor(now_us / settle)
  local key = KEYS[first + 12 + window % 2]
  call('HSET', key, id, whole(until_us or now_us + settle) .. ' ' .. path .. ' ' .. charges)
  if call('PTTL', key) == -1 then
    call('PEXPIRE', key, math.ceil(((window + 2) * settle - now_us) / 1000))
  end
end

-- A range of the slot numbers of a node, as a record that sorts like its first one.
local function number_range(name, low, high)
  return string.format('%s %016d', name, low) .. (low < high and '-' .. high or '')
end

-- The first record of a node in a set of records that are sorted as texts.
local function first_of(key, name)
  local found = call('ZRANGEBYLEX', key, '[' .. name .. ' ', '(' .. name .. '!', 'LIMIT', 0, 1)
  return found[1]
end
