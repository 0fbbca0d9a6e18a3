-- tiers/release.lua: release paths, or leave the queue; whoever fits then is served at once.
-- KEYS  1-8 the Tiers object (tiers/state.lua)
-- ARGV  1 now (s; empty: the server's clock)   2 the loop client that calls, or empty
--       3... acquisition ids
-- Returns {for each id a digit: 1 it held, 2 it waited, 0 neither; of the last that waited: the node
--          that its group lacked, its value, held, waiting}
-- (the last four "", 0, 0, 0 if none waited), and behind it messages for the caller.
-- Mirrors PathLedger.expire, then PathLedger.release or cancel for all ids at once.
-- include tiers/rules.lua
open(1, ARGV[1], {unpack(ARGV, 3)})
caller = ARGV[2]
begin_though_full(holders)
note_aware({unpack(ARGV, 3)})
local digits, lacked = {}, nil
if #ARGV > 3 then  -- read all nodes at once
  local names = {}
  for i = 3, #ARGV do
    local claim = read_claim(ARGV[i])
    for _, name in ipairs(claim and names_of(claim.path) or {}) do
      if known[name] == nil then
        known[name] = false
        names[#names + 1] = name
      end
    end
  end
  fetch(names)
end
expire()
for i = 3, #ARGV do
  local id, digit = ARGV[i], '0'
  if release(id) == 1 then
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
local reply = {table.concat(digits), '', 0, 0, 0}
if lacked then
  local node = read_node(lacked)
  reply[2], reply[3], reply[4], reply[5] = lacked, value_of(node), node.held, node.waiting
end
return answer(reply)
