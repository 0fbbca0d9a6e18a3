-- semaphore/resize.lua: change the value of a semaphore in use.
-- KEYS  1-7 the semaphore (semaphore/rules.lua)
-- ARGV  1 now (s; empty: the server's clock)   2 the loop client that calls   3 heartbeat_max_interval (s)
--       4 pattern of foreign notification lists   5 the value the caller was made with, or its rules
--       6 the new value   7 for how long it is remembered when nobody is there (s)
--       8 empty to change it, or the ticket from which to continue the search for waiters that
--       can't be granted any more
-- Returns {"adaptive"} if the value adapts: it can be frozen (semaphore/freeze.lua),
-- or {"resized", value, the ticket from which to continue, or "" at the end} or {"closed", the
-- reason if there is one}, followed by messages for the caller. If nobody continues, those waiters
-- are refused when they reach the head of the queue.
-- Mirrors Ledger.resize.
-- include semaphore/rules.lua
open(1, ARGV[1])
caller, pattern = ARGV[2], ARGV[4]
local interval, declared, value, remembered = tonumber(ARGV[3]), ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
end_ttls()
drop_silent()
local facts = redis.call('HMGET', state, '.closed', '.reason')
if facts[1] then return closed_reply(facts[2]) end
if find_adaptation() or rules_in(',' .. declared .. ',') then return {'adaptive'} end
local held = redis.call('ZCARD', main)

local from, shrinks = ARGV[8], true
if from == '' then
  if redis.call('HEXISTS', state, '.value') == 0 then note_orphans() end
  local values = redis.call('HGET', state, '.values')
  if not values then
    local before = held > 0 and tonumber(redis.call('GET', max))
    values = ',' .. (before and whole(before) .. ',' or '')
  end
  for _, known in ipairs({declared, whole(value)}) do
    if not string.find(values, ',' .. known .. ',', 1, true) then values = values .. known .. ',' end
  end
  shrinks = value < (current_value() or math.huge)  -- a value that grows refuses nobody
  redis.call('HSET', state, '.value', value, '.values', values)
  redis.call('SET', max, value, 'KEEPTTL')
else
  value = current_value() or value  -- somebody may have changed it meanwhile
end

local after = ''
if shrinks then
  local found = redis.call('ZRANGEBYSCORE', waiting, from == '' and '-inf' or '(' .. from, '+inf', 'WITHSCORES',
                           'LIMIT', 0, PAGE)
  if #found == 2 * PAGE then after = found[#found] end
  local hopeless = {}
  for i = 1, #found, 2 do
    if slots_of(found[i]) > value then hopeless[#hopeless + 1] = found[i] end
    if #hopeless == AT_ONCE and i + 1 < #found then
      after = found[i + 1]
      break
    end
  end
  refuse(hopeless, 'refused', whole(value))
end
serve(value, interval)
keep(interval)
outlive(state, remembered)
outlive(max, remembered)
local reply = {'resized', value, after}
for _, message in ipairs(messages) do reply[#reply + 1] = message end
return reply
