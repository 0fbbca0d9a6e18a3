-- tiers/rates.lua: the buckets of nodes with a rate: what was taken of them, and what has come back. Not a script.
-- It mirrors slotwise/_ledger/rate_nodes.py and what PathLedger does with rates.

made_when_needed(buckets, function()
  function buckets.read(text)
    local gain, unit, burst, per = string.match(text, '^(%d+)/(%d+)/(%d+)/(%d+)$')
    if not gain then return nil end
    unit, burst = tonumber(unit), tonumber(burst)
    return {gain = tonumber(gain), unit = unit, burst = burst, per = tonumber(per), full = burst * unit, text = text}
  end

  -- Add what has come back by now. If the clock steps back, that continues from there.
  function buckets.refill(node)
    local gained = (now_us - node.at) * node.rate.gain
    node.at = now_us
    if gained <= 0 or node.level >= node.rate.full then return end
    node.level = gained >= node.rate.full - node.level and node.rate.full or node.level + gained
  end

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
        redis.call('ZADD', keys.cleanup, whole(now_us + left_us), 'b ' .. node.name)
        node.listed, fresh[keys.cleanup] = true, true
      end
    end
    change(node)
  end

  -- With "~" and another rate than that of its tier if it was the first to get that.
  function buckets.record(node)
    local rated = node.rated ~= rates[node.tier].text and node.rated
    return string.format('0 %d %s %s %s %d %d', node.waiting, node.own_rate and node.own_rate.text or rated and '~' .. rated or '-',
                         node.kept and kept_text(node) or '-',
                         node.listed and '1' or '0', node.level, node.at)
  end

  -- Look at a node again when there is enough for its first head.
  function buckets.look_in_time(node, first)
    local kept = node.kept and node.kept ~= first[1] and node.kept_slots or 0
    local need = need_of(node, needs_of(first[3])) + kept
    if need > node.rate.burst then  -- not by time alone
      redis.call('ZREM', keys.refills, node.name)
      dues.told[node.name] = nil
      return
    end
    local when = node.at + buckets.time_for(node, need * node.rate.unit - node.level)
    when = math.max(when, pauses.until_of(node), blocked_until > now and math.ceil(blocked_until * 1000000) or 0)
    local name, before = node.name, tonumber(redis.call('ZSCORE', keys.refills, node.name))
    redis.call('ZADD', keys.refills, whole(when), name)
    fresh[keys.refills] = true
    if before ~= when or dues.told[name] or dues.moved[name] then dues.told[name] = {first[3], when} end
  end

  -- Tell the processes of heads that lack only time when to come back. The others who wait, and learn that from
  -- next_end, come a little later: should one of these processes be dead, it delays nobody for long.
  function buckets.tell_due()
    for _, due in pairs(dues.told) do
      local id = due[1]
      local claim = read_claim(id)
      if claim then notify(id, claim.owner, 'due ' .. id .. ' ' .. whole(math.max(due[2] - now_us, 0))) end
    end
    dues.told, dues.moved = {}, {}
  end

  -- What an id took of each tier, after corrections.
  function buckets.charges_of(id)
    local text = get('$' .. id)
    local charges = {}
    for charge_text in string.gmatch(text and string.match(text, '(%S+)$') or string.match(id, '%*([%d.]*)') or '', '%d+') do
      charges[#charges + 1] = tonumber(charge_text)
    end
    return charges
  end

  -- Remember one that ends, or was corrected, so that what it took of rates can be corrected.
  function buckets.remember(id, path, charges)
    local texts = {}
    for i, each in ipairs(charges or buckets.charges_of(id)) do texts[i] = whole(each) end
    put('$' .. id, whole(now_us + settle_us) .. ' ' .. path .. ' ' .. table.concat(texts, '.'))
    outlive(settle_us / 1000000 + 1)
    redis.call('ZADD', keys.cleanup, whole(now_us + settle_us), 'e ' .. id)
    fresh[keys.cleanup] = true
  end

  -- State what an id has really taken of rates: "tier=units,...". False if it is unknown.
  function buckets.correct(id, text)
    local claim = redis.call('ZSCORE', keys.holders, id) and read_claim(id)
    local ended = get('$' .. id)
    local until_us, path = string.match(ended or '', '^(%d+) (%S+) ')
    if not claim and not (until_us and tonumber(until_us) > now_us) then return false end
    path = claim and claim.path or path
    local path_nodes, charges = nodes_of(path), buckets.charges_of(id)
    for tier, units in string.gmatch(text, '(%d+)=(%d+)') do
      tier, units = tonumber(tier) + 1, tonumber(units)
      local node = path_nodes[tier]
      if node and node.rate then
        buckets.charge(node, units - charges[tier])
        charges[tier] = units
        touched[node.name] = node
      end
    end
    local ends = until_us and tonumber(until_us)
    buckets.remember(id, path, charges)
    if ends and not claim then  -- it is not remembered for longer than before
      local rest = string.match(known['$' .. id], '^%d+ (.*)$')
      put('$' .. id, whole(ends) .. ' ' .. rest)
      redis.call('ZADD', keys.cleanup, whole(ends), 'e ' .. id)
    end
    return true
  end

  -- Give back what was taken of rates for a grant that nobody has seen.
  function buckets.refund(id)
    local path = string.match(get('$' .. id) or '', '^%d+ (%S+) ')
    if not path then return false end
    local charges = buckets.charges_of(id)
    for _, node in ipairs(nodes_of(path)) do
      if node.rate then
        buckets.charge(node, -(charges[node.tier] or 0))
        touched[node.name] = node
      end
    end
    put('$' .. id, false)
    redis.call('ZREM', keys.cleanup, 'e ' .. id)
    return true
  end

  -- Forget full buckets, and claims that ended long ago, some in each call; look at buckets with
  -- enough for those who wait.
  function buckets.pass_time()
    local due = redis.call('ZRANGEBYSCORE', keys.cleanup, '-inf', whole(now_us), 'LIMIT', '0', AT_ONCE)
    for _, member in ipairs(due) do
      local kind, name = string.match(member, '^(%S) (%S+)$')
      if kind == 'e' then
        put('$' .. name, false)
        redis.call('ZREM', keys.cleanup, member)
      elseif kind == 'b' then
        local node = read_node(name)
        buckets.refill(node)
        if node.level >= node.rate.full then
          node.listed = false
          change(node)
          redis.call('ZREM', keys.cleanup, member)
        else
          redis.call('ZADD', keys.cleanup, whole(now_us + buckets.time_for(node, node.rate.full - node.level)), member)
        end
      end
    end
    for _, name in ipairs(redis.call('ZRANGEBYSCORE', keys.refills, '-inf', whole(now_us), 'LIMIT', '0', AT_ONCE)) do
      redis.call('ZREM', keys.refills, name)
      look_at(read_node(name))
    end
    if last_ticket > now_us + STEP then  -- the clock was set back: the latest times are from before that
      for _, name in ipairs(redis.call('ZREVRANGE', keys.refills, 0, AT_ONCE - 1)) do
        local node = read_node(name)
        if node.at > now_us then
          buckets.refill(node)
          change(node)
          look_at(node)
        end
      end
    end
  end

  -- ------------------------------------------------------------------------- another rate

  local RATED = 30  -- how many buckets of a tier get another rate in one call

  -- Continue with another rate: the level stays, to the nearest part, cut to the new burst.
  function buckets.change_rate(node, rate)
    local old = node.rate
    buckets.refill(node)
    local is_full = node.level == old.full
    local units = math.floor(node.level / old.unit)
    local parts = units * rate.unit + math.floor((node.level - units * old.unit) / old.unit * rate.unit + 0.5)
    node.rate = rate
    node.level = is_full and rate.full or math.min(parts, rate.full)
    buckets.charge(node, 0)
    touched[node.name] = node
  end

  -- Give all buckets of a tier another rate, some in each call. Returns true if that isn't finished: then all calls are asked to be
  -- made again, as during a rebuild, so that nothing changes until it is done. A bucket that has it already says so.
  function buckets.change_rates(tier, rate, place)
    if rates[tier].text == rate.text then return false end
    local done = 0
    repeat
      local found = redis.call('HSCAN', keys.state, place, 'MATCH', whole(tier - 1) .. ':*', 'COUNT', 20)
      place, done = found[1], done + 1
      for i = 1, #found[2], 2 do
        local node = read_node(found[2][i])
        if not node.own_rate and node.rated ~= rate.text then
          buckets.change_rate(node, rate)
          node.rated, done = rate.text, done + 1
        end
      end
    until place == '0' or done >= RATED
    if place == '0' then
      values[tier], rates[tier] = rate.burst, rate
      agreement.accept(tier, rate.text)
      put('.rating', false)
      return false
    end
    put('.rating', whole(tier) .. ' ' .. rate.text .. ' ' .. place)
    for name, node in pairs(touched) do
      touched[name] = nil
      if node.waiting > 0 then look_at(node) end
    end
    save()
    return true
  end

  function buckets.go_on_changing_rates()
    local tier, text, place = string.match(known['.rating'], '^(%d+) (%S+) (%d+)$')
    local rate = text and buckets.read(text)
    if rate and rates[tonumber(tier)] then return buckets.change_rates(tonumber(tier), rate, place) end
    put('.rating', false)
  end
end)
