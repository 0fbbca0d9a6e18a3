-- base/hold_times.lua: how long holds take: HoldTimes (slotwise/_ledger/estimates.py) in Lua. Not a script.
-- Fast halves include it: every function here costs each call.
--
-- .hold is "busy ended", with "all " in front if holds are timed although nobody waits: the
-- slot-seconds of recent holds, and how many slots those were.

-- The text of .hold after more holds, each of this many slots; `held_for` has how long (s) each took.
local function note_holds(text, held_for, slots)
  local all, busy, ended = string.match(text or '', '^(%a* ?)(%S+) (%S+)$')
  busy, ended = tonumber(busy) or 0, tonumber(ended) or 0
  for i = 1, #held_for do
    busy, ended = busy + math.max(held_for[i], 0) * slots, ended + slots
    if ended > 32 then busy, ended = busy * 16 / ended, 16 end
  end
  return string.format('%s%.6f %.6f', all or '', busy, ended)
end

-- Whether holds are timed although nobody waits.
local function times_all(text) return string.sub(text or '', 1, 4) == 'all ' end
