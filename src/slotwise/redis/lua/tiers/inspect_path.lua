-- tiers/inspect_path.lua: how full the tiers of one path are, or who holds or waits.
-- KEYS  1-8 the Tiers object (tiers/state.lua)
-- ARGV  1 now (s; empty: the server's clock)   2 "path", "holders" or "waiters"
--       3 the path, for "path"
-- Returns {1 if closed and 2 if for a reason, the reason or "", 1 if something is unfinished}, and
-- behind it, for "path", {} if nobody is there, else for each node: held, waiting, value, kept;
-- for the others, in turn: an id and its claim, or "" if that can't be found.
-- Mirrors PathLedger.expire, then reads.
-- include tiers/rules.lua
open(1, ARGV[1])
if known['.shape'] then
  expire()
  save()
end
local closed = known['.closed'] and (known['.reason'] and 2 or 1) or 0
local reply = {closed, known['.reason'] or '', is_unfinished()}
if ARGV[2] == 'path' then
  if known['.shape'] then
    for _, node in ipairs(nodes_of(ARGV[3])) do
      for _, number in ipairs({node.held, node.waiting, value_of(node), node.kept and 1 or 0}) do
        reply[#reply + 1] = number
      end
    end
  end
else
  for _, id in ipairs(redis.call('ZRANGE', ARGV[2] == 'holders' and holders or waiters, 0, -1)) do
    reply[#reply + 1] = id
    reply[#reply + 1] = redis.call('HGET', state, id) or ''
  end
end
return reply
