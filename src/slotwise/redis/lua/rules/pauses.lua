-- rules/pauses.lua: nodes, and whole tiers, that grant nothing before some time. Not a script.
-- It mirrors what PathLedger does with pauses.

made_when_needed(pauses, function()
  local STEP = 100000  -- a shorter step back of the clock (us) is not worth looking for

  function pauses.read(text)
    pauses.ends = false
    for name, until_us in string.gmatch(text or '', '(%S+)=(%d+)') do
      pauses.ends = pauses.ends or {}
      pauses.ends[name] = tonumber(until_us)
    end
  end

  -- Until when (us) a node is paused; 0 if it is not.
  function pauses.until_of(node)
    if not pauses.ends then return 0 end
    return math.max(pauses.ends[node.name] or 0, pauses.ends[whole(node.tier - 1)] or 0)
  end

  function pauses.write()
    local texts = {}
    for name, until_us in pairs(pauses.ends) do
      texts[#texts + 1] = name .. '=' .. whole(until_us)
    end
    put('.pauses', #texts > 0 and table.concat(texts, ' '))
    put('.paused_at', #texts > 0 and whole(now_us))
    if #texts == 0 then pauses.ends = false end
  end

  -- If the clock was set back, set the ends of pauses back too: what was left of them is left.
  function pauses.follow_clock()
    local seen = tonumber(get('.paused_at') or nil) or now_us
    if math.abs(now_us - seen) < STEP then return end
    for name, until_us in pairs(pauses.ends) do
      pauses.ends[name] = until_us - math.max(seen - now_us, 0)
    end
    pauses.write()
  end

  -- Pause a node, or a whole tier, for that long (us). Waiters are told when to come back.
  function pauses.begin(name, length_us)
    pauses.ends = pauses.ends or {}
    pauses.ends[name] = math.max(pauses.ends[name] or 0, now_us + length_us)
    pauses.write()
    -- Not for twice as long, as `outlive` would have it: a pause may be one of weeks.
    keep_for_now(now_us + length_us + 2 * longest * 1000000)
    have_waiters_look()
  end

  -- Look at the next nodes of a tier where somebody is parked, at most `most`, from the one after
  -- `after` on. Return the last of them, or nil if there are no more.
  function pauses.look_at_some(tier, after, most)
    local from = '[' .. (after == '' and tier .. ':' or after .. '"')
    while true do
      local record = call('ZRANGEBYLEX', flush(keys.parked), from, '(' .. tier .. ';', 'LIMIT',
        '0', '1')[1]
      if not record then return nil end
      if most <= 0 then return after end
      after, most = record:match('^[^%s!]+'), most - 1
      queue.look_at(read_node(after))
      from = '[' .. after .. '"'
    end
  end

  -- How many nodes may be added to those to be looked at: there are never very many. To add one
  -- costs half as much as to examine a head.
  function pauses.room_for_work()
    local room = math.min(turns.MOST_AT_ONE_TAG - call('ZCARD', keys.unfinished), math.floor(left))
    left = left - math.floor(math.max(room, 0) / 2)
    return math.max(room, 1)
  end

  -- Go on looking at every node of some tiers where somebody is parked: "tier node" for each, with
  -- a comma between.
  function pauses.go_on_looking()
    local rest = {}
    for tier, after in known['.looking']:gmatch('(%d+) ([^,]*)') do
      after = pauses.look_at_some(tier, after, pauses.room_for_work())
      if after then rest[#rest + 1] = tier .. ' ' .. after end
    end
    put('.looking', #rest > 0 and table.concat(rest, ','))
  end

  -- Whether a node has still to be looked at by that.
  function pauses.is_to_be_looked_at(node)
    for tier, after in string.gmatch(known['.looking'] or '', '(%d+) ([^,]*)') do
      if tonumber(tier) == node.tier - 1 and node.name > after then return true end
    end
    return false
  end

  -- End the pauses whose time has come, and look at what was paused.
  function pauses.finish(at_us)
    local ended = {}
    for name, until_us in pairs(pauses.ends) do
      if until_us <= at_us then ended[#ended + 1] = name end
    end
    if #ended == 0 then return end
    for _, name in ipairs(ended) do pauses.ends[name] = nil end
    for _, name in ipairs(ended) do
      if is_line or name:find(':', 1, true) then
        queue.look_at(read_node(name))
      else
        put('.looking', (known['.looking'] and known['.looking'] .. ',' or '') .. name .. ' ')
      end
    end
    pauses.write()
  end

  -- How many wait at a node, for replies: a text "number ms" while it is paused for that long.
  function pauses.waiting_text(node)
    local left_us = pauses.until_of(node) - now_us
    if left_us <= 0 then return node.waiting end
    return whole(node.waiting) .. ' ' .. whole(math.ceil(left_us / 1000))
  end
end)
