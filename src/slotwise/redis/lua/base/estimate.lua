-- base/estimate.lua: when a number of slots comes back: slots_in (slotwise/_ledger/estimates.py,
-- which has the rule) in Lua. Not a script.
--
-- include base/hold_times.lua
local SAMPLE = 100
local estimates = {}  -- functions: a script can have only 200 local names

-- The text of .hold from now on, if all holds are to be timed.
function estimates.time_all(text)
  return times_all(text) and text or 'all ' .. (text or '0 0')
end

-- The mean hold (s), or nil.
function estimates.mean_hold(text)
  local busy, ended = string.match(text or '', '(%S+) (%S+)$')
  busy, ended = tonumber(busy), tonumber(ended)
  return busy and ended and ended > 0 and busy / ended or nil
end

-- An estimate of the sum of `count` numbers, of which only the first are given.
function estimates.total(first, count)
  local sum = 0
  for _, each in ipairs(first) do sum = sum + each end
  return #first > 0 and sum * count / #first or 0
end

-- In how many seconds this many more slots are free, or nil.
function estimates.slots_in(missing, value, mean)
  if missing <= 0 or value == 0 then return 0 end
  return mean and missing * mean / value
end

-- An estimate in a reply: seconds, or "".
function estimates.estimate_text(estimate) return estimate and string.format('%.6f', estimate) or '' end
