-- tiers/numbers.lua: the slot numbers of the widest nodes: a grant gets the lowest that are free.
-- Not a script.
--
-- A widest node has, while a call serves it, as ranges {first, last}, the lowest last:
--   freed   those that this call has freed; in no order unless `is_sorted`
--   stored  those that are in the key, with their records: read some at a time; all if `has_all_ranges`
--   used    records of those that were in the key, and have been taken since
local free_numbers, free_all_numbers, recount_numbers, number
do  -- a script has room for 200 local names
  local RANGES = 64

  local function drop_used(widest)
    if widest.used then call_in_chunks(widest.used, 'ZREM', keys.numbers) end
    widest.used = nil
  end

  local function stored_ranges(widest)
    local stored = widest.stored
    if stored and (stored[1] or widest.has_all_ranges) then return stored end
    drop_used(widest)
    local found = redis.call('ZRANGEBYLEX', keys.numbers, '[' .. widest.name .. ' ', '(' .. widest.name .. '!',
                             'LIMIT', '0', RANGES)
    stored = {}
    for i = #found, 1, -1 do
      local low, high = string.match(found[i], ' (%d+)%-?(%d*)$')
      low = tonumber(low)
      if low then stored[#stored + 1] = {low, tonumber(high) or low, found[i]} end
    end
    widest.stored, widest.has_all_ranges = stored, #found < RANGES
    return stored
  end

  local function freed_ranges(widest)
    local freed = widest.freed or {}
    if not widest.is_sorted then
      table.sort(freed, function(one, other) return one[1] > other[1] end)
      widest.is_sorted = true
    end
    return freed
  end

  local function free_range(widest, low, high)
    local freed = widest.freed or {}
    widest.freed, widest.is_sorted = freed, false
    freed[#freed + 1] = {low, high}
  end

  -- Take the lowest free consecutive numbers, at most `at_most`: the first and the last.
  local function take_range(widest, at_most)  -- before it counts the new holder
    if widest.top > widest.held then
      local freed, stored = freed_ranges(widest), stored_ranges(widest)
      local found, lowest = freed[#freed], stored[#stored]
      if lowest and not (found and found[1] < lowest[1]) then
        found = lowest
        stored[#stored] = nil
        widest.used = widest.used or {}
        widest.used[#widest.used + 1] = lowest[3]
      elseif found then
        freed[#freed] = nil
      end
      if found then
        local last = math.min(found[2], found[1] + at_most - 1)
        if last < found[2] then free_range(widest, last + 1, found[2]) end
        return found[1], last
      end
    end
    local first = widest.top + 1
    widest.top = widest.top + at_most
    return first, widest.top
  end

  -- The lowest numbers that are free, as ranges.
  local function take_ranges(widest, need)
    local low, high = take_range(widest, need)
    local taken = {{low, high}}
    need = need - (high - low + 1)
    while need > 0 do
      low, high = take_range(widest, need)
      need = need - (high - low + 1)
      local last = taken[#taken]
      if last[2] + 1 == low then last[2] = high else taken[#taken + 1] = {low, high} end
    end
    return taken
  end

  -- Give a claim its slot numbers.
  function number(claim, widest, need)
    local value = value_of(widest)
    if need == 1 then
      local low = take_range(widest, 1)
      if value == 0 or low <= value then
        claim.numbers = whole(low)
        return
      end
      free_range(widest, low, low)
    end
    local taken = take_ranges(widest, need)
    if value > 0 and taken[#taken][2] > value then  -- a key has lost free ones below
      recount_numbers(widest)
      taken = take_ranges(widest, need)
    end
    for i, each in ipairs(taken) do taken[i] = range(each[1], each[2]) end
    claim.numbers = table.concat(taken, ',')
  end

  -- Those of a claim, "1-3,7", are free again.
  function free_numbers(widest, text)
    local single = tonumber(text)
    if single then return free_range(widest, single, single) end
    for low, high in each_range(text) do free_range(widest, low, high) end
  end

  function free_all_numbers(widest)
    if widest.top > 1 then
      redis.call('ZREMRANGEBYLEX', keys.numbers, '[' .. widest.name .. ' ', '(' .. widest.name .. '!')
    end
    widest.freed, widest.used, widest.stored, widest.has_all_ranges, widest.top = nil, nil, {}, true, 0
  end

  -- Find out from the claims of holders which numbers are free.
  function recount_numbers(widest)
    if pending then flush(keys.holders) end
    local ids, unread, taken = redis.call('ZRANGE', keys.holders, 0, -1), {}, {}
    for _, id in ipairs(ids) do note_unread(id, unread) end
    fetch(unread)
    for _, id in ipairs(ids) do
      local claim = read_claim(id)
      if claim and names_of(claim.path)[widest_tier] == widest.name then
        for low, high in each_range(claim.numbers) do taken[#taken + 1] = {low, high} end
      end
    end
    free_all_numbers(widest)
    table.sort(taken, function(one, other) return one[1] < other[1] end)
    for _, each in ipairs(taken) do
      if each[1] > widest.top + 1 then free_range(widest, widest.top + 1, each[1] - 1) end
      widest.top = math.max(widest.top, each[2])
    end
  end

  function save_numbers(widest)
    drop_used(widest)
    local records = {}
    for i, each in ipairs(widest.freed or {}) do
      local record = widest.name .. ' ' .. padded(each[1])
      if each[1] < each[2] then record = record .. '-' .. whole(each[2]) end
      records[2 * i - 1], records[2 * i] = 0, record
    end
    if #records > 0 then
      call_in_chunks(records, 'ZADD', keys.numbers)
      fresh[keys.numbers] = true
    end
    widest.freed, widest.stored = nil, nil
  end
end
