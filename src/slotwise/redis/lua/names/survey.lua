-- names/survey.lua: how full every limit is, in one call, or in several if there are many names or nodes of tiers.
-- KEYS  1 names (names/note.lua); the keys of the names themselves are made here, on the same shard
-- ARGV  1 now (s; empty: the server's clock)   2 the namespace   3 "1" if names are in braces (Cluster)
--       4 where to continue, empty at first; "-" to look only at the names that follow
--       5 and more: other names to look at, as members of names
-- Returns {where to continue, "" at the end, the time (us), how many of the other names it has looked at, {names that it found
-- and had no time for, as members}, then for each known name one of
--   {"semaphore", name, value, held, waiting (a text while it is paused: "number ms"),
--    1 if closed and 2 if for a reason, the reason or "", 1 if an adaptive value is frozen, else 0}
--   {"tiers", name, shape, declared values, values, holders, waiters, 1 if a bucket is not full,
--    1 if closed and 2 if for a reason, the reason or "", .pauses (tiers/state.lua) or "",
--    {the numbers of tiers that are frozen, and nodes}, node, its record, node, its record, ...}
--   {"ask", "semaphore" or "tiers", name}: its own script has to be called.}
-- It only reads. That is not enough where something is damaged, unfinished or too large, or a deadline has passed.
-- include base/clock.lua
-- include tiers/frozen.lua
local PAGE = 150        -- names in one call
local NODES = 800       -- fields of tiers that are searched in one call, of one name or of all; they cost less
local effort = PAGE     -- what is left of it
local now_us = microseconds(ARGV[1])
local now_text = seconds(now_us / 1000000)
local namespace, braces, from = ARGV[2], ARGV[3] == '1', ARGV[4]

local function key_of(kind, name) return namespace .. ':' .. kind .. ':' .. (braces and '{' .. name .. '}' or name) end

-- Whether a deadline has passed in any of these sorted sets.
local function is_over(...)
  for _, key in ipairs({...}) do
    if #redis.call('ZRANGEBYSCORE', key, '-inf', now_text, 'LIMIT', 0, 1) > 0 then return true end
  end
  return false
end

local function closed_of(closed, reason) return closed and (reason and 2 or 1) or 0 end

local look_at = {}

-- Nil if it doesn't exist, false if its own script has to be called.
function look_at.semaphore(name)
  local state, main = key_of('semaphore_state', name), key_of('semaphore_main', name)
  local waiting, waiting_heartbeat = key_of('semaphore_waiting', name), key_of('semaphore_waiting_heartbeat', name)
  local facts = redis.call('HMGET', state, '.value', '.closed', '.reason', '.rebuild', '.paused', '.window')
  local text = facts[1] or redis.call('GET', key_of('semaphore_max', name))
  local held, queued = redis.call('ZCARD', main), redis.call('ZCARD', waiting)
  if not text and held + queued == 0 and not facts[2] then return nil end
  local value = tonumber(text or nil)
  if not (value and value >= 1 and value <= 2^53 and value == math.floor(value)) or facts[4]
      or is_over(main, key_of('semaphore_ttl', name), waiting_heartbeat)
      or queued ~= redis.call('ZCARD', waiting_heartbeat) then
    return false
  end
  local paused_us = (tonumber(string.match(facts[5] or '', '^%d+')) or 0) - now_us
  if paused_us > 0 then queued = whole(queued) .. ' ' .. whole(math.ceil(paused_us / 1000)) end
  local is_frozen = facts[6] and string.byte(facts[6]) == 2
  return {'semaphore', name, value, held, queued, closed_of(facts[2], facts[3]), facts[3] or '', is_frozen and 1 or 0}
end

function look_at.tiers(name)
  local state = key_of('tiers_state', name)
  local holders, waiters = key_of('tiers_holders', name), key_of('tiers_waiters', name)
  local facts = redis.call('HMGET', state, '.shape', '.declared', '.values', '.closed', '.reason', '.suspect', '.blocked',
                           '.pauses', '.frozen')
  if not facts[1] and not facts[4] then return nil end
  if facts[6] or facts[7] or is_over(holders, waiters, key_of('tiers_ttls', name))
      or redis.call('EXISTS', key_of('tiers_unfinished', name)) == 1 then
    return false
  end
  local reply = {
    'tiers', name, facts[1] or '', facts[2] or '', facts[3] or '', redis.call('ZCARD', holders),
    redis.call('ZCARD', waiters), redis.call('EXISTS', key_of('tiers_cleanup', name)),
    closed_of(facts[4], facts[5]), facts[5] or '', facts[8] or '',
  }
  effort = effort - math.min(redis.call('HLEN', state), NODES) * PAGE / NODES
  local found = redis.call('HSCAN', state, '0', 'MATCH', '[0-9]*', 'COUNT', NODES)
  if found[1] ~= '0' then return false end
  reply[#reply + 1] = string.find(facts[3] or '', '_', 1, true) and frozen_of(state, facts[9], found[2]) or {}
  for _, each in ipairs(found[2]) do reply[#reply + 1] = each end
  return reply
end

local left = {}
local reply, seen = {'', whole(now_us), 0, left}, {}

local function look(member)
  local kind, name = string.match(member, '^(%l+) (.*)$')
  if not look_at[kind] or seen[member] then return end
  seen[member] = true
  effort = effort - 1
  -- What can't be read here has the wrong type, or is on another node by now: its own script says which.
  local fine, found = pcall(look_at[kind], name)
  if not fine then found = false end
  if found ~= nil then reply[#reply + 1] = found or {'ask', kind, name} end
end

for i = 5, #ARGV do
  if effort <= 0 then break end
  look(ARGV[i])
  reply[3] = i - 4
end
if from == '-' or effort <= 0 then
  if from ~= '-' then reply[1] = from == '' and '0' or from end
  return reply
end
local count = redis.pcall('ZCARD', KEYS[1])
if type(count) ~= 'number' then return reply end  -- damaged
-- ZSCAN, not pages by rank: ranks change all the time, and names would be missed.
local found = redis.call('ZSCAN', KEYS[1], from == '' and '0' or from, 'COUNT', PAGE)
reply[1] = found[1] ~= '0' and found[1] or ''
for i = 1, #found[2], 2 do
  if effort > 0 then look(found[2][i]) else left[#left + 1] = found[2][i] end
end
return reply
