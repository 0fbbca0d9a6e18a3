-- rules/rates.lua: the buckets of nodes with a rate: what was taken of them, and what has come
-- back. Not a script.
-- It mirrors slotwise/_ledger/rate_nodes.py and what PathLedger does with rates.

made_when_needed(buckets, function()
  local STEP = 100000  -- a shorter step back of the clock (us) is not worth looking for
  local RESIZES = 20   -- how many former rates of its tiers a limit remembers

  function buckets.read(text)
    local gain, unit, burst, per = text:match('^(%d+)/(%d+)/(%d+)/(%d+)$')
    if not gain then return nil end
    unit, burst = tonumber(unit), tonumber(burst)
    return {gain = tonumber(gain), unit = unit, burst = burst, per = tonumber(per),
      full = burst * unit, text = text}
  end

  local function refill_until(node, us)
    local gained = (us - node.at) * node.rate.gain
    node.at = us
    if gained <= 0 or node.level >= node.rate.full then return end
    node.level = gained >= node.rate.full - node.level and node.rate.full or node.level + gained
  end

  -- Add what has come back by now. If the clock steps back, that continues from there.
  function buckets.refill(node) refill_until(node, now_us) end

  -- In how many us this many parts come back, rounded up.
  function buckets.time_for(node, parts)
    local gain = node.rate.gain
    local us = math.ceil(parts / gain)
    while us * gain < parts do us = us + 1 end
    while (us - 1) * gain >= parts do us = us - 1 end
    return us
  end

  -- Take this many units, room or not; a negative number gives some back.
  function buckets.charge(node, units)
    buckets.refill(node)
    node.level = math.min(node.level - units * node.rate.unit, node.rate.full)
    local left_us = buckets.time_for(node, node.rate.full - node.level)
    if left_us > 0 then
      outlive(left_us / 1000000 + 1)
      if not node.listed then
        call('ZADD', keys.cleanup, whole(now_us + left_us), node.name)
        node.listed, fresh[keys.cleanup] = true, true
      end
    end
    change(node)
  end

  function buckets.record(node)
    local rated = node.rated and node.rated > 0 and '~' .. whole(node.rated) or '-'
    return string.format('0 %d %s %s %s %d %d', node.waiting,
      node.own_rate and node.own_rate.text or rated,
                         node.kept and kept_text(node) or '-', node.listed and '1' or '0',
                         node.level, node.at)
  end

  -- Look at a node again when there is enough for its first head.
  function buckets.look_in_time(node, first)
    local kept = node.kept and node.kept ~= first[1] and node.kept_slots or 0
    local need = need_of(node, needs_of(first[3])) + kept
    if need > node.rate.burst then  -- not by time alone
      call('ZREM', keys.refills, node.name)
      dues.told[node.name] = nil
      return
    end
    local when = node.at + buckets.time_for(node, need * node.rate.unit - node.level)
    when = math.max(when, pauses.ends and pauses.until_of(node) or 0)
    local name, before = node.name, tonumber(call('ZSCORE', keys.refills, node.name))
    call('ZADD', keys.refills, whole(when), name)
    fresh[keys.refills] = true
    if before ~= when or dues.told[name] or dues.moved[name] then
      dues.told[name] = {first[3], when}
    end
  end

  -- Tell the processes of heads that lack only time when to come back. The others who wait, and
  -- learn that from next_end, come a little later: should one of these processes be dead, it delays
  -- nobody for long.
  function buckets.tell_due()
    for _, due in pairs(dues.told) do
      local id = due[1]
      local claim = read_claim(id)
      if claim then
        notify(id, claim.owner, 'due ' .. id .. ' ' .. whole(math.max(due[2] - now_us, 0)))
      end
    end
    dues.told, dues.moved = {}, {}
  end

  -- Forget full buckets, and adaptive keys that nobody uses, some in each call; look at buckets
  -- with enough for those who wait.
  function buckets.pass_time()
    for _, name in ipairs(call('ZRANGEBYSCORE', keys.cleanup, '-inf', whole(now_us), 'LIMIT', '0',
        AT_ONCE)) do
      local again_us
      if name:byte() == 37 then  -- "%"
        again_us = adapting.forget_if_idle(name:sub(2))
      else
        local node = read_node(name)
        buckets.refill(node)
        node.listed = node.level < node.rate.full
        if node.listed then
          again_us = now_us + buckets.time_for(node, node.rate.full - node.level)
        end
        change(node)
      end
      if again_us then
        call('ZADD', keys.cleanup, whole(again_us), name)
      else
        call('ZREM', keys.cleanup, name)
      end
    end
    if turns.waiting == 0 then return end
    for _, name in ipairs(call('ZRANGEBYSCORE', keys.refills, '-inf', whole(now_us), 'LIMIT', '0',
        AT_ONCE)) do
      call('ZREM', keys.refills, name)
      queue.look_at(read_node(name))
    end
    -- the clock was set back: the latest times are from before that
    if last_ticket > now_us + STEP then
      for _, name in ipairs(call('ZREVRANGE', keys.refills, 0, AT_ONCE - 1)) do
        local node = read_node(name)
        if node.at > now_us then
          buckets.refill(node)
          change(node)
          queue.look_at(node)
        end
      end
    end
  end

  -- ------------------------------------------------------------------ what was really taken

  -- The hash that is written now, and the other one: each is written for settle_us, and kept for as
  -- long again.
  local function taken_keys()
    local turn = math.floor(now_us / settle_us) % 2
    return KEYS[first_key + 12 + turn], KEYS[first_key + 13 - turn]
  end

  -- Remember one that has ended, so that what it took of rates can be corrected until then (us).
  function buckets.remember(id, path, charges, until_us)
    charges = charges or charges_in(id, #value_texts)
    note_taken(first_key, settle_us, id, path, charges, until_us)
    outlive(settle_us / 1000000 + 1)
  end

  -- Until when (us) one that has ended can be corrected, its path, and what it took; nil if that is
  -- not known.
  function buckets.recall(id)
    local key, other = taken_keys()
    local text = call('HGET', key, id) or call('HGET', other, id)
    local until_us, path, charges = string.match(text or '', '^(%d+) (%S+) ([%d.]+)$')
    until_us = tonumber(until_us)
    if until_us and until_us > now_us then return until_us, path, charges end
  end

  -- State what an id has really taken of rates: "tier=units,...". False if it is unknown.
  function buckets.correct(id, text)
    local claim, until_us, path, charges = read_claim(id), nil, nil, nil
    if claim and not is_waiting(claim) then
      path, charges = claim.path, claim.charges or charges_in(id, #value_texts)
    else
      until_us, path, charges = buckets.recall(id)
    end
    if not path then return false end
    local path_nodes, units = nodes_of(path), {}
    for each in charges:gmatch('%d+') do units[#units + 1] = tonumber(each) end
    for tier, actual in text:gmatch('(%d+)=(%d+)') do
      tier, actual = tonumber(tier) + 1, tonumber(actual)
      local node = path_nodes[tier]
      if node and node.rate then
        buckets.charge(node, actual - units[tier])
        units[tier] = actual
        touched[node.name] = node
      end
    end
    for i, each in ipairs(units) do units[i] = whole(each) end
    charges = table.concat(units, '.')
    if until_us then
      buckets.remember(id, path, charges, until_us)
    else
      claim.charges = charges
      write_claim(id, claim)
    end
    return true
  end

  -- Give back what was taken of rates for a grant that nobody has seen; once.
  function buckets.refund(id)
    local _, path, charges = buckets.recall(id)
    if not path then return false end
    for _, key in ipairs({taken_keys()}) do call('HDEL', key, id) end
    local tier = 0
    for units in charges:gmatch('%d+') do
      tier = tier + 1
      local node = nodes_of(path)[tier]
      if node.rate then
        buckets.charge(node, -tonumber(units))
        touched[node.name] = node
      end
    end
    return true
  end

  -- ------------------------------------------------------------------------- another rate

  -- Continue with another rate: the level stays, to the nearest part, cut to the new burst.
  function buckets.change_rate(node, rate)
    local old = node.rate
    local is_full = node.level == old.full
    local units = math.floor(node.level / old.unit)
    local rest = (node.level - units * old.unit) / old.unit
    local parts = units * rate.unit + math.floor(rest * rate.unit + 0.5)
    node.rate = rate
    node.level = is_full and rate.full or math.min(parts, rate.full)
  end

  -- The rates that a tier has had, as {until (us), rate}, and the current one at the end; its
  -- buckets change to it when they are read next.
  local function rates_of(tier)
    local found = {}
    for its, number, until_us, text in string.gmatch(known['.rated'] or '',
        '(%d+) (%d+) (%d+) (%S+)') do
      if tonumber(its) == tier then
        found.first = found.first or tonumber(number)
        found[#found + 1] = {tonumber(until_us), buckets.read(text)}
      end
    end
    found.first = found.first or 0
    found[#found + 1] = {math.huge, rates[tier]}
    return found
  end

  -- Have a bucket that was written a while ago continue with each rate that its tier has had since.
  function buckets.catch_up(node, is_full)
    local found = rates_of(node.tier)
    local at = is_full and #found or math.max(node.rated - found.first, 0) + 1
    node.rate, node.rated = found[at][2], found.first + #found - 1
    for i = at, #found - 1 do
      refill_until(node, math.max(found[i][1], node.at))
      buckets.change_rate(node, found[i + 1][2])
      change(node)
    end
  end

  -- Give a tier another rate.
  function buckets.resize_tier(tier, rate)
    if rates[tier].text == rate.text then return end
    local found, texts = rates_of(tier), {}
    local number = found.first + #found - 1
    for text in string.gmatch(known['.rated'] or '', '%d+ %d+ %d+ %S+') do
      texts[#texts + 1] = text
    end
    texts[#texts + 1] = table.concat({whole(tier), whole(number), whole(now_us), rates[tier].text},
      ' ')
    for _, node in pairs(nodes) do  -- those that this call has read
      if node.tier == tier and not node.own_rate then
        buckets.refill(node)
        buckets.change_rate(node, rate)
        node.rated = number + 1
        change(node)
      end
    end
    put('.rated', table.concat(texts, ' ', math.max(#texts - RESIZES + 1, 1)))
    values[tier], rates[tier] = rate.burst, rate
    agreement.accept(tier, rate.text)
  end
end)
