-- semaphore/freeze.lua: keep an adaptive value where it is, or let it move again.
-- KEYS  1-7 the semaphore (semaphore/rules.lua)
-- ARGV  1 now (s; empty: the server's clock)   2 the loop client that calls   3 heartbeat_max_interval (s)
--       4 pattern of foreign notification lists
--       5 the value the caller was made with, or its rules; empty if that may be another
--       6 "freeze" or "thaw"   7 the value to freeze it at; empty: the current one
--       8 for how long (s) it is remembered when nobody is there
-- Returns {"done", value}, followed by messages for the caller
--         {"fixed"}                                it doesn't adapt
--         {"outside", min, max}                    of its rules
--         {"conflict", value, held, waiting, its rules if it adapts}   in use with another value
--         {"closed", the reason if there is one}
-- Mirrors Adaptation.freeze and Adaptation.thaw, then Ledger.resize.
-- include semaphore/rules.lua
open(1, ARGV[1])
caller, pattern = ARGV[2], ARGV[4]
local interval, value = tonumber(ARGV[3]), tonumber(ARGV[7])
end_ttls()
drop_silent()
local facts = redis.call('HMGET', state, '.closed', '.reason')
if facts[1] then return closed_reply(facts[2]) end
if rules_in(',' .. ARGV[5] .. ',') then
  local held, queued = redis.call('ZCARD', main), redis.call('ZCARD', waiting)
  local agreed, other, other_rules = agree_on_value(ARGV[5], held, queued, interval)
  if not agreed then return {'conflict', other, held, queued, other_rules} end
end
if not find_adaptation() then return {'fixed'} end
if tonumber(ARGV[5]) then
  local values = redis.call('HGET', state, '.values')
  return {'conflict', adaptation.limit, redis.call('ZCARD', main), redis.call('ZCARD', waiting), rules_in(values)}
end
local rules = adaptation.rules
if value and (value < rules.min or value > rules.max) then return {'outside', rules.min, rules.max} end
if ARGV[6] == 'freeze' then
  adaptations.freeze(adaptation, now_us, value)
else
  adaptations.thaw(adaptation, now_us)
end
adaptation.is_changed = true
serve(current_value(), interval)
keep(interval)
outlive(state, tonumber(ARGV[8]))
outlive(max, tonumber(ARGV[8]))
local reply = {'done', adaptation.limit}
for _, message in ipairs(messages) do reply[#reply + 1] = message end
return reply
