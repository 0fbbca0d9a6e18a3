-- base/window.lua: one more sample in the window of an adaptive value, while counting is all there is to do.
-- Not a script. Fast halves include it; base/adaptation.lua has the rules, and a test compares the two.
--
-- A sample comes behind the id in a release, after a space: how the work ended, "o" (ok), "d" (dropped) or
-- "i" (ignored), for how long it was held by the client's own clock (us; "-": since the grant), and the
-- retry_after (us) if there was one, with "p" behind it if nothing is to be granted for that long, and the numbers
-- of the tiers of which that is so: "o51234", "d51234 2000000", "d51234 2000000p", "d51234 2000000p0.2". Without one
-- it is "i-".
--
-- .window is "begin ends need calls succeeded busy failed" (times in us), with "frozen " in front of it while
-- the value is frozen.

-- Whether a semaphore may have had another value, by the text of .values: it was resized, or it adapts.
local function has_moved(values) return not string.find(values or '', '^,%d+,$') end

-- An id and the sample behind it, which may be nil.
local function split_sample(text)
  local space = string.find(text, ' ', 1, true)
  if not space then return text, nil end
  return string.sub(text, 1, space - 1), string.sub(text, space + 1)
end

-- For how long (us) slots were held that were granted then (s).
local function held_for(sample, granted, now_us)
  local held = tonumber(string.match(sample, '^%a(%d+)'))
  return held or math.max(now_us - math.floor((tonumber(granted) or 0) * 1000000 + 0.5), 0)
end

-- The text of .window, with the sample of one slot more in it; nil if there is more to do.
local function count_in_window(text, sample, granted, now_us)
  if string.find(sample, ' ', 1, true) then return nil end
  local begin, ends, need, calls, succeeded, busy, failed =
    string.match(text, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
  if not begin then return string.sub(text, 1, 7) == 'frozen ' and text or nil end
  local is_errors = ends == '0'
  begin = tonumber(begin)
  if now_us < begin then return not is_errors and now_us >= begin - 60000000 and text or nil end
  local held, outcome = held_for(sample, granted, now_us), string.sub(sample, 1, 1)
  if outcome == 'o' then
    calls, succeeded = calls + 1, succeeded + 1
  elseif outcome == 'd' then
    calls, failed = calls + 1, failed + held
  end
  if outcome ~= 'i' and (is_errors and outcome == 'd' or now_us >= tonumber(ends) and calls >= tonumber(need)) then
    return nil
  end
  return string.format('%.0f %s %s %.0f %.0f %.0f %.0f', begin, ends, need, calls, succeeded, busy + held, failed)
end
