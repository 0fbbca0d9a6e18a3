-- rules/numbers.lua: the slot numbers of the widest nodes: a grant gets the lowest that are free.
-- Not a script.
made_when_needed(slot_numbers, function()
  local function range(low, high)
    return low == high and whole(low) or whole(low) .. '-' .. whole(high)
  end

  -- Of "1-3,7": 1 and 3, then 7 and 7.
  function slot_numbers.each(text)
    local following = text:gmatch('[^,]+')
    return function()
      local part = following()
      if not part then return nil end
      local low, high = part:match('^(%d+)%-?(%d*)$')
      low = tonumber(low) or damaged('slot numbers are ' .. text)
      return low, tonumber(high) or low
    end
  end

  local function free_range(widest, low, high)
    zadd(keys.numbers, '0', number_range(widest.name, low, high))
    fresh[keys.numbers] = true
  end

  -- How many numbers are taken.
  local function taken_of(widest) return is_line and counts.held or widest.held end

  -- Take the lowest free consecutive numbers, at most `at_most`: the first and the last. So many
  -- were taken before.
  local function take_range(widest, at_most, taken)
    if widest.top <= taken then
      widest.top = widest.top + at_most
      return widest.top - at_most + 1, widest.top
    end
    local record = first_of(flush(keys.numbers), widest.name)
    local low, high = string.match(record or '', ' (%d+)%-?(%d*)$')
    if not low then damaged('slot numbers are missing') end
    zrem(keys.numbers, record)
    low, high = tonumber(low), tonumber(high) or tonumber(low)
    local last = math.min(high, low + at_most - 1)
    if last < high then free_range(widest, last + 1, high) end
    return low, last
  end

  -- Give a claim the lowest numbers that are free.
  function slot_numbers.allot(claim, widest, need)
    local count, taken = taken_of(widest), {}
    while need > 0 do
      local low, high = take_range(widest, need, count)
      need, count = need - (high - low + 1), count + high - low + 1
      local last = taken[#taken]
      if last and last[2] + 1 == low then last[2] = high else taken[#taken + 1] = {low, high} end
    end
    for i, each in ipairs(taken) do taken[i] = range(each[1], each[2]) end
    claim.numbers = table.concat(taken, ',')
  end

  -- Those of a claim, "1-3,7", are free again; all of the node's if it was the last.
  function slot_numbers.free(widest, text)
    if taken_of(widest) == 0 then return slot_numbers.free_all(widest) end
    for low, high in slot_numbers.each(text) do free_range(widest, low, high) end
  end

  function slot_numbers.free_all(widest)
    if widest.top > 1 then
      call('ZREMRANGEBYLEX', flush(keys.numbers), '[' .. widest.name .. ' ',
        '(' .. widest.name .. '!')
    end
    widest.top = 0
  end

  -- Count anew which numbers are free, by those that are taken: ranges in any order.
  function slot_numbers.recount(widest, taken)
    slot_numbers.free_all(widest)
    table.sort(taken, function(one, other) return one[1] < other[1] end)
    for _, each in ipairs(taken) do
      if each[1] > widest.top + 1 then free_range(widest, widest.top + 1, each[1] - 1) end
      widest.top = math.max(widest.top, each[2])
    end
  end
end)
