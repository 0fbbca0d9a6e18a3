-- rules/agreement.lua: what all objects of a name have to agree on: its tiers and their values. Not
-- a script.

made_when_needed(agreement, function()
  -- The i-th part of a text that has "|" between its parts.
  local function part(text, i)
    for each in text:gmatch('[^|]+') do
      i = i - 1
      if i == 0 then return each end
    end
  end

  -- Have a tier another value, or rate, as a text. Objects may be made with the old one and with
  -- the new one.
  function agreement.accept(tier, text)
    value_texts[tier] = text
    local texts, parts = {}, {}
    for i in ipairs(values) do
      texts[i], parts[i] = value_texts[i], part(get('.accepted'), i)
      if i == tier and not parts[i]:find(',' .. texts[i] .. ',', 1, true) then
        parts[i] = parts[i] .. texts[i] .. ','
      end
    end
    put('.values', table.concat(texts, ','))
    put('.accepted', table.concat(parts, '|'))
  end

  -- The tier whose value is in the way of an object that was made with these, or nil.
  local function clashing(own_values)
    local i = 0
    for value in own_values:gmatch('[^,]+') do
      i = i + 1
      if not string.find(part(get('.accepted'), i), ',' .. value .. ',', 1, true) then return i end
    end
  end

  -- Agree on the tiers with an object that was made with these; nil, or the number of the tier
  -- whose value is in the way, or 0 if the tiers are others.
  function agreement.declare(shape, own_values)
    local clash = 0
    if known['.shape'] == shape then
      clash = known['.declared'] ~= own_values and clashing(own_values)
      if not clash then return nil end
    -- clients that speak only the document may have been here first
    elseif is_line and not known['.shape'] then
      clash = values[1] and own_values ~= whole(values[1]) and 1
    end
    local is_used = turns.waiting + counts.held_before > 0
    if clash and is_used and (known['.shape'] or is_line and values[1]) then return clash end
    -- A bucket that is not full is in use.
    if known['.shape'] and next(rates) then
      local found = call('ZRANGEBYSCORE', keys.cleanup, '(' .. whole(now_us), '+inf', 'LIMIT', '0',
        CHUNK)
      if #found == CHUNK then return clash end  -- not all is looked at, and much was used lately
      for _, member in ipairs(found) do
        if member:byte() ~= 37 then return clash end
      end
    end
    -- Nobody is there: forget what was agreed on before, and changed since.
    if pauses.ends then get('.paused_at') end
    if not is_used then
      unlink(unpack(KEYS, first_key, first_key + key_count - 1))
      for field, text in pairs(known) do
        if field:sub(1, 1) == '.' then put(field, text) else known[field] = false end
      end
      nodes, nodes_by_path, moved, fresh[keys.state], counts.timed = {}, {}, {}, true, 0
    end
    for _, fact in ipairs({'.frozen', '.rated', '.large'}) do put(fact, false) end
    if known['.shape'] ~= shape and pauses.ends then  -- they are by the numbers of tiers
      pauses.ends = {}
      pauses.write()
    end
    read_values(own_values)
    widest_tier = is_line and 1 or widest_tier
    put('.shape', shape)
    turns.read(shape)
    put('.declared', own_values)
    put('.accepted', (own_values:gsub('([^,]+),?', '|,%1,')))
    put('.values', own_values)
  end

  -- What is in the way of somebody by whom declare() returned this: the value, "rate" and the rate,
  -- or all the tiers.
  function agreement.conflicting(clash)
    local is_word = clash == 0 or adapting.rules[clash]
    local tier = 0
    for text in string.gmatch(not is_word and known['.values'] or '', '[^,]+') do
      tier = tier + 1
      if tier == clash and text:find('/', 1, true) then return 'rate ' .. text end
    end
    return is_word and (known['.shape'] or '') .. ' ' .. (known['.declared'] or '')
      or values[clash] or 0
  end
end)
