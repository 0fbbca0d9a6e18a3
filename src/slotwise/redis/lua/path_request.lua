-- path_request.lua: take one slot of every tier at once, or else wait, holding nothing.
-- KEYS  1-8 the Tiers object (path_common.lua)
-- ARGV  1 now (s; empty: the server's clock)   2 acquisition id   3 path
--       4 the tiers' names, as the caller was made   5 and their values
--       6 heartbeat_max_interval (s)   7 ttl (s; "-": none)
--       8 "wait" or "try"   9 "again" if it may have been asked before, else empty
--       10 who: "host pid label"   11 "due" to be told when somebody's time is up, else empty
-- Returns {"granted", number, token, 1 if something is unfinished}
--         {"queued", ms until somebody's time is up, or -1, 1 if something is unfinished}
--         {"busy", node, value, held, waiting}     only for "try"; nothing has changed
--         {"conflict", tier or -1, its value}      in use with other tiers
--         {"closed", the reason if there is one}   for everybody, until path_reopen.lua
-- and behind these what it has to tell the caller's seat of others.
-- Mirrors PathLedger.expire, then PathLedger.request or try_request.
-- include path_rules.lua
local id, path, interval = ARGV[2], ARGV[3], tonumber(ARGV[6])
open(1, ARGV[1], id, '>' .. path, unpack(names_of(path)))
caller = string.match(id, '^sw%-([^-]+)%-')
-- One that is asked again may have been granted before the close.
if known['.closed'] and not (ARGV[9] ~= '' and redis.call('ZSCORE', holders, id)) then
  return closed_reply()
end
local clash = declare(ARGV[4], ARGV[5])
if clash then return {'conflict', clash - 1, values[clash] or 0} end
if interval > longest then
  longest = interval
  put('.interval', ARGV[6])
end
outlive(longest)
expire()

if ARGV[9] ~= '' then
  local claim = read_claim(id)
  if claim and redis.call('ZSCORE', holders, id) then
    return answer({'granted', claim.number, claim.token, is_unfinished()})
  elseif claim and redis.call('ZSCORE', waiters, id) then
    return answer({'queued', next_end(), is_unfinished()})
  end
end

settle()
local path_nodes = nodes_of(path)
local lacking = lacks(path_nodes)
local is_free = not lacking and not parked_at(path) and not unfinished_on(path_nodes)
if not is_free and ARGV[8] == 'try' then
  lacking = lacking or path_nodes[1]
  return answer({'busy', lacking.name, value_of(lacking), lacking.held, lacking.waiting})
end
last_ticket = last_ticket + 1
put('.ticket', whole(last_ticket))
local claim = {
  interval = ARGV[6], ttl = ARGV[7], path = path, ticket = last_ticket, granted = '0', number = 0,
  token = 0, who = ARGV[10],
}
if is_free then
  seat(id, claim, path_nodes, seconds(now + interval))
  return answer({'granted', claim.number, claim.token, is_unfinished()})
end
wait(id, claim, path_nodes, seconds(now + interval))
return answer({'queued', ARGV[11] == '' and -1 or next_end(), is_unfinished()})
