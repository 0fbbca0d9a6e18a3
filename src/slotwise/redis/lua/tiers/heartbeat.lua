-- tiers/heartbeat.lua: the heartbeats of a whole process for its paths; the reply tells which have changed state.
-- KEYS  12 for each Tiers object (tiers/state.lua), one after the other
-- ARGV  and replies are those of semaphore/heartbeat.lua, so that one heartbeat thread serves both:
--       1 now (s; empty: the server's clock)   2 the loop client that calls, or empty
--       then for each object: heartbeat_max_interval (s), a pattern that is not used here,
--       how many holders, how many waiters, the holders' ids, the waiters' ids
-- Returns for each object {ms until the next deadline, 0 if something is unfinished, or -1,
-- and "lost id", "lost id kept", "gone id", "granted id number token", "failed why", "full" ...}, or {-1, "repairing"}
-- if this call has done nothing for it but a part of a repair, and has to be made again (if it is the only one: repairs.REPLY)
-- Mirrors a renewal of each, then PathLedger.expire.
-- include tiers/rules.lua
-- include base/renewal.lua

-- Which of ARGV[first] .. ARGV[last] are in none of some sets.
local function missing(first, last, one, other)
  local found = {}
  for i = first, last do
    if not one[ARGV[i]] and not (other and other[ARGV[i]]) then found[#found + 1] = ARGV[i] end
  end
  return found
end

-- For one object, whose keys begin at KEYS[first] and arguments at ARGV[at].
local function renew_object(first, at)
  if open(first, ARGV[1]) then return {-1, 'repairing'} end
  caller = ARGV[2]
  local interval, held, waited = tonumber(ARGV[at]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  local first_holder, first_waiter = at + 4, at + 4 + held
  local last = first_waiter + waited - 1
  turns.renewed = held + waited
  -- Its clients must learn of a damaged key, even if this call doesn't need it.
  for key = first + 6, first + 11 do redis.call('ZCARD', KEYS[key]) end

  -- Renewed before silent ones are dropped: one that is late, but not dropped yet, lives. That
  -- doesn't extend a ttl.
  local function look_up()
    local is_blocked = blocked_until > now  -- then those in holders have lost what they held
    return is_blocked and {} or present(keys.holders, ARGV, first_holder, last), present(keys.waiters, ARGV, first_waiter, last)
  end
  local holding, waiting = look_up()
  if known['.shape'] and held + waited > 0 and blocked_until <= now
      and (repairs.has_claims(missing(first_holder, first_waiter - 1, holding))
           or repairs.has_claims(missing(first_waiter, last, waiting, holding)) or not repairs.is_sound()) then
    if repairs.rebuild(true) then return {-1, 'repairing'} end
    holding, waiting = look_up()
  end
  local over = {}
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', keys.ttls, '-inf', now_text, 'LIMIT', '0', AT_ONCE)) do
    over[id] = true
  end
  local living, queued, ended, outcome = {}, {}, {}, {}
  local kept = blocked_until > now and ' kept' or ''
  for i = first_holder, first_waiter - 1 do
    local id = ARGV[i]
    if holding[id] and not over[id] then
      living[#living + 1] = id
    else
      outcome[#outcome + 1] = 'lost ' .. id .. kept
      ended[#ended + 1] = id
    end
  end
  for i = first_waiter, last do
    local id = ARGV[i]
    local claim = holding[id] and not over[id] and read_claim(id)
    if waiting[id] then
      queued[#queued + 1] = id
    elseif claim then
      living[#living + 1] = id
      outcome[#outcome + 1] = 'granted ' .. id .. ' ' .. number_of(claim) .. ' ' .. claim.token
    elseif not widest_tier and get('$' .. id) then  -- of rates alone nothing is held
      outcome[#outcome + 1] = 'granted ' .. id .. ' 0 ' .. whole(token)
    else
      outcome[#outcome + 1] = 'gone ' .. id
    end
  end
  renew(keys.holders, living, seconds(now + interval))
  renew(keys.waiters, queued, seconds(now + interval))
  if known['.shape'] then
    if held + waited > 0 then outlive(math.max(longest, interval)) end
    clamp(keys.holders, longest)
    clamp(keys.waiters, longest)
    -- After a failover one may wait here for what another server has granted it.
    for id in pairs(present(keys.waiters, ended, 1, #ended)) do leave(id) end
    expire()
    save()
  end
  for _, message in ipairs(messages) do outcome[#outcome + 1] = message end
  local due = next_end()
  if due ~= 0 and redis.call('EXISTS', keys.waiters) == 0 then due = -1 end
  table.insert(outcome, 1, due)
  return outcome
end

-- If it fails on a key of the right type with senseless contents, the next call rebuilds that key.
local function renew_name(first, at)
  local outcome, why = guarded(renew_object, first, at)
  if outcome then return outcome end
  if not string.find(why, 'WRONGTYPE', 1, true) and redis.pcall('HEXISTS', KEYS[first], '.shape') == 1 then
    redis.pcall('HSET', KEYS[first], '.suspect', '1')
  end
  error({err = why})
end

local replies = renew_names(renew_name, 12, KEYS[4])
if #KEYS == 12 and replies[1][2] == 'repairing' then return redis.error_reply(repairs.REPLY) end
return replies
