-- path_give.lua: give paths back, or leave the line; whoever fits then is served at once.
-- KEYS  1-8 the Tiers object (path_common.lua)
-- ARGV  1 now (s; empty: the server's clock)   2 the caller's seat, or empty
--       3... acquisition ids
-- Returns {for each id a digit: 1 it held, 2 it waited, 0 neither; 1 if something is unfinished,
--          of the last that waited: the node that its group lacked, its value, held, waiting}
-- (the last four "", 0, 0, 0 if none waited), and behind it what it has to tell the caller's seat.
-- Mirrors PathLedger.expire, then PathLedger.release or cancel for all ids at once.
-- include path_rules.lua
open(1, ARGV[1], ARGV[3])
caller = ARGV[2]
begin_though_full(holders)
local digits, lacked = {}, nil
expire()
for i = 3, #ARGV do
  local id, digit = ARGV[i], '0'
  if give(id) == 1 then
    digit = '1'
  else
    local stood, name = leave(id)
    if stood == 1 then
      digit = '2'
      lacked = name
    end
  end
  digits[#digits + 1] = digit
end
settle()
local reply = {table.concat(digits), is_unfinished(), '', 0, 0, 0}
if lacked then
  local node = read_node(lacked)
  reply[3], reply[4], reply[5], reply[6] = lacked, value_of(node), node.held, node.waiting
end
return answer(reply)
