-- tiers/loss.lua: what is done when state itself is lost, and with it who holds what. Not a script.

made_when_needed(losses, function()
  -- What the tiers are is lost, so the rest of state is useless; but they stay closed.
  function losses.forget_state()
    local closed = redis.call('HMGET', keys.state, '.closed', '.reason', '.until')
    repairs.unlink(keys.state)
    for field in pairs(known) do known[field] = false end
    for i, fact in ipairs({'.closed', '.reason', '.until'}) do
      if closed[i] then
        known[fact] = closed[i]
        redis.call('HSET', keys.state, fact, closed[i])
        redis.call('PEXPIRE', keys.state, CLOSED * 1000)
      end
    end
    read_values('')
    pauses.ends = false
    token, last_ticket, longest, life_us = 0, 0, 0, 0
  end

  -- State is lost, and with it who holds what. Nobody gets anything until all holders know that:
  -- their next heartbeat tells them, and they release what they held. It ends at the latest when
  -- their time is up, since nothing renews them any more. Until then they stay where they are.
  function losses.forget_claims()
    have_checked(redis.call('ZRANGE', keys.waiters, 0, LOOKED_AT - 1), keys.state)
    local latest = tonumber(redis.call('ZREVRANGE', keys.holders, 0, 0, 'WITHSCORES')[2])
    repairs.unlink(unpack(KEYS, first_key + 2, first_key + 11))
    if latest and latest > now then
      known['.blocked'], known['.unaware'] = seconds(latest), '0'
      redis.call('HSET', keys.state, '.blocked', known['.blocked'], '.unaware', '0')
      redis.call('PEXPIRE', keys.state, math.ceil((latest - now) * 1000))
    else
      repairs.unlink(keys.holders)
    end
  end

  -- Have the processes of some more holders check what became of them.
  function losses.warn_unaware()
    local found, ids = redis.call('ZSCAN', keys.holders, known['.unaware'], 'COUNT', PAGE), {}
    for i = 1, #found[2], 2 do ids[#ids + 1] = found[2][i] end
    have_checked(ids, keys.state)
    known['.unaware'] = found[1] ~= '0' and found[1]
    if known['.unaware'] then
      redis.call('HSET', keys.state, '.unaware', found[1])
    else
      redis.call('HDEL', keys.state, '.unaware')
    end
  end

  -- These hold nothing, and know it now, or were silent for too long. If they were the last that did not know, everybody
  -- is served again.
  function losses.note_aware(ids)
    if blocked_until <= now or #ids == 0 then return end
    local aware = 0
    for from = 1, #ids, CHUNK do
      aware = aware + redis.call('ZREM', keys.holders, unpack(ids, from, math.min(from + CHUNK - 1, #ids)))
    end
    if aware == 0 or redis.call('EXISTS', keys.holders) == 1 then return end
    for _, fact in ipairs({'.blocked', '.unaware'}) do
      redis.call('HDEL', keys.state, fact)
      known[fact] = false
    end
    blocked_until = 0
    if known['.shape'] then repairs.suspect() end
  end
end)
