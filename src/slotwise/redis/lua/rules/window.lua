-- rules/window.lua: add a sample to the window of an adaptive value, as long as it only has to be
-- counted.
-- Not a script. Quick halves include it; rules/adaptation.lua has the rules, and a test compares
-- the two.
--
-- A sample comes behind the id in a release, after a space: how the work ended, "o" (ok), "d"
-- (dropped) or
-- "i" (ignored), for how long it was held by the client's own clock (us; "-": since the grant), and
-- the retry_after (us) if there was one, followed by "p" if nothing is to be granted for that long,
-- and the numbers of the tiers that this applies to: "o51234", "d51234 2000000", "d51234 2000000p",
-- "d51234 2000000p0.2". Without one
-- it is "i-".
--
-- A window is packed, since each release reads and writes it: 1, or 2 while the value is frozen,
-- then begin, ends, need, calls, succeeded, busy and failed (times in us).
local WINDOW, WINDOW_BYTES = '<Bi8i8i8i8i8i8i8', 57

-- How long (us) slots that were granted then (s) have been held.
local function held_for(sample, granted, at_us)
  local held = tonumber(sample:match('^%a(%d+)'))
  return held or math.max(at_us - math.floor((tonumber(granted) or 0) * 1000000 + 0.5), 0)
end

-- The window with the sample of one slot more in it; nil if there is more to do. The sample begins
-- at `first` in a text:
-- each text that is made costs as much as a command.
local function count_in_window(window, text, first, granted, at_us)
  if #window ~= WINDOW_BYTES then return nil end
  local mark, begin, ends, need, calls, succeeded, busy, failed = struct.unpack(WINDOW, window)
  local held = tonumber(text:sub(first + 1))
  if not held then
    local sample = text:sub(first)
    if sample:find(' ', 1, true) then return nil end
    held = held_for(sample, granted, at_us)
  end
  if mark ~= 1 then return mark == 2 and window or nil end
  local is_errors, outcome = ends == 0, text:sub(first, first)
  if at_us < begin then return not is_errors and at_us >= begin - 60000000 and window or nil end
  if outcome == 'o' then
    calls, succeeded = calls + 1, succeeded + 1
  elseif outcome == 'd' then
    calls, failed = calls + 1, failed + held
  end
  if outcome ~= 'i' and (is_errors and outcome == 'd' or at_us >= ends and calls >= need) then
    return nil
  end
  return struct.pack(WINDOW, 1, begin, ends, need, calls, succeeded, busy + held, failed)
end
