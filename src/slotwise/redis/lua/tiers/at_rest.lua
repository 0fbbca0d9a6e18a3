-- tiers/at_rest.lua: the common part of the fast halves of tiers/request.lua and tiers/release.lua. Not a script.
--
-- A Tiers object is at rest while nobody waits, nothing is closed, paused, lost or past its deadline, and no tier has
-- a rate, adapts, or has values of its own. Then one path is taken or released here. The rest of the script isn't
-- reached: creating its functions costs more than all of this. The code here copies open, declare, expire, hold,
-- free_claim and save of tiers/state.lua and tiers/rules.lua for this case; tests/redis/test_paths_against_ledger.py
-- compares it with the ledger too.
-- include base/clock.lua
local at_rest = {}

-- Read the facts and one more field of state. Returns what was read, or nil if the object isn't at rest.
function at_rest.read(given_now, field)
  local facts = redis.call('HMGET', KEYS[1], '.shape', '.declared', '.accepted', '.values', '.interval', '.life', '.keys',
                           '.token', '.ticket', '.timed', '.closed', '.blocked', '.suspect', '.pauses', '.frozen', '.hold',
                           field)
  for i = 1, 9 do
    if not facts[i] then return nil end
  end
  for i = 11, 15 do
    if facts[i] then return nil end
  end
  if string.find(facts[4], '[/_]') or string.sub(facts[16] or '', 1, 4) == 'all ' then return nil end
  -- All keys other than holders, ttls and numbers are for waiters or for rates.
  if redis.call('EXISTS', KEYS[3], KEYS[5], KEYS[6], KEYS[7], KEYS[9], KEYS[10], KEYS[11], KEYS[12]) > 0
      or redis.call('EXISTS', KEYS[2], KEYS[4], KEYS[8]) ~= tonumber(facts[7]) then
    return nil
  end
  local us = microseconds(given_now)
  local now = tonumber(given_now) or us / 1000000
  local read = {
    us = us, now = now, now_text = seconds(now), longest = tonumber(facts[5]), life_us = tonumber(facts[6]),
    keys = facts[7], token = tonumber(facts[8]), ticket = tonumber(facts[9]), timed = facts[10], field = facts[17],
    shape = facts[1], declared = facts[2], values = facts[4], changed = {}, idle = {},
  }
  if not (read.longest and read.life_us and read.token and read.ticket and read.longest < 2^31 and read.life_us < 2^53)
      or redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', read.now_text, 'LIMIT', '0', '1')[1]
      or (read.timed and redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', read.now_text, 'LIMIT', '0', '1')[1]) then
    return nil
  end
  return read
end

-- How many slots of a node are held, and its highest number; nil if its record says more than that.
function at_rest.counts(record)
  if not record then return 0, 0 end
  local held, top = string.match(record, '^(%d+) 0 %- %- (%d+)$')
  return tonumber(held), tonumber(top)
end

-- Note a new value for a field of state, for save to write.
function at_rest.put(read, field, text)
  local changed = read.changed
  changed[#changed + 1], changed[#changed + 2] = field, text
end

function at_rest.put_counts(read, name, held, top)
  if held == 0 then
    read.idle[#read.idle + 1] = name
  else
    at_rest.put(read, name, whole(held) .. ' 0 - - ' .. whole(top))
  end
end

-- Make a key that may be new expire with the others.
function at_rest.expire(read, key)
  if redis.call('PTTL', key) ~= -1 then return end
  local left_us = read.life_us - read.us
  if left_us <= 0 then left_us = read.longest * 1000000 end
  redis.call('PEXPIRE', key, math.max(math.ceil(left_us / 1000), 1))
end

-- Write what was noted.
function at_rest.save(read)
  local keys = whole(redis.call('EXISTS', KEYS[2], KEYS[4], KEYS[8]))
  if keys ~= read.keys then at_rest.put(read, '.keys', keys) end
  if read.changed[1] then redis.call('HSET', KEYS[1], unpack(read.changed)) end
  if read.idle[1] then redis.call('HDEL', KEYS[1], unpack(read.idle)) end
end

