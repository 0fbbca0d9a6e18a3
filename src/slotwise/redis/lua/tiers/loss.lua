-- tiers/loss.lua: what is done when state itself is lost, and with it who holds what. Not a script.

made_when_needed(losses, function()
  -- What the tiers are is lost, so the rest of state is useless; but they stay closed.
  function losses.forget_state()
    local closed = redis.call('HMGET', state, '.closed', '.reason', '.until')
    repairs.unlink(state)
    for field in pairs(known) do known[field] = false end
    for i, fact in ipairs({'.closed', '.reason', '.until'}) do
      if closed[i] then
        known[fact] = closed[i]
        redis.call('HSET', state, fact, closed[i])
        redis.call('PEXPIRE', state, CLOSED * 1000)
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
    have_checked(redis.call('ZRANGE', waiters, 0, LOOKED_AT - 1), state)
    local latest = tonumber(redis.call('ZREVRANGE', holders, 0, 0, 'WITHSCORES')[2])
    repairs.unlink(waiters, ttls, queue, parked, unfinished, numbers, refills, cleanup, turns.passed, turns.shares)
    if latest and latest > now then
      known['.blocked'], known['.unaware'] = seconds(latest), '0'
      redis.call('HSET', state, '.blocked', known['.blocked'], '.unaware', '0')
      redis.call('PEXPIRE', state, math.ceil((latest - now) * 1000))
    else
      repairs.unlink(holders)
    end
  end

  -- Have the processes of some more holders check what became of them.
  function losses.warn_unaware()
    local found, ids = redis.call('ZSCAN', holders, known['.unaware'], 'COUNT', PAGE), {}
    for i = 1, #found[2], 2 do ids[#ids + 1] = found[2][i] end
    have_checked(ids, state)
    known['.unaware'] = found[1] ~= '0' and found[1]
    if known['.unaware'] then
      redis.call('HSET', state, '.unaware', found[1])
    else
      redis.call('HDEL', state, '.unaware')
    end
  end

  -- These hold nothing, and know it now, or were silent for too long. If they were the last that did not know, everybody
  -- is served again.
  function losses.note_aware(ids)
    if blocked_until <= now or #ids == 0 then return end
    local aware = 0
    for from = 1, #ids, CHUNK do
      aware = aware + redis.call('ZREM', holders, unpack(ids, from, math.min(from + CHUNK - 1, #ids)))
    end
    if aware == 0 or redis.call('EXISTS', holders) == 1 then return end
    for _, fact in ipairs({'.blocked', '.unaware'}) do
      redis.call('HDEL', state, fact)
      known[fact] = false
    end
    blocked_until = 0
    if known['.shape'] then repairs.suspect() end
  end
end)
