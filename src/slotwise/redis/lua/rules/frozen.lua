-- rules/frozen.lua: which adaptive tiers and nodes are frozen. Not a script.

-- The numbers of the tiers that are frozen as a whole, from the fact .frozen, and the frozen ones of some nodes, given as
-- node, record, node, record, ... rules/adaptive.lua says how a node is frozen.
local function frozen_of(state, whole_tiers, records)
  local frozen, nodes, fields = {}, {}, {}
  for tier in string.gmatch(whole_tiers or '', '(%d+)=') do frozen[#frozen + 1] = tier end
  for i = 1, #records, 2 do
    nodes[#nodes + 1], fields[#fields + 1] = records[i], '%' .. records[i]
  end
  for from = 1, #fields, 1000 do
    local found = redis.call('HMGET', state, unpack(fields, from, math.min(from + 999, #fields)))
    for i, text in ipairs(found) do
      if text and string.find(text, '^%d+;[^;]*;\2') then frozen[#frozen + 1] = nodes[from + i - 1] end
    end
  end
  return frozen
end
