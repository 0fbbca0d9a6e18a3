-- rules/adaptation.lua: how an adaptive value moves. Not a script.
-- Mirrors slotwise/_ledger/adaptation.py, which has the rules and the reasons for the constants,
-- bit for bit: the same operations in the same order. rules/window.lua says what a window and a
-- sample are.
local PROBE, CALM, WANTED, GAIN, BOLD, MOVE = 0.85, 4, 0.4, 0.5, 2.0, 0.1
local BOUND, DISTINCT, FAILURES, MARGIN, FADE, GROWTH = 0.8, 0.02, 20, 0.95, 1.06, 3.0
local LONGEST_SETTLING, ERRORS_CUT = 60000000, 0.7
local STEADY, BELOW, ABOVE = 0, 1, 2
-- What is kept of it besides the window: .adapt.
local OF_LATENCY = {'value', 'limit', 'frozen', 'grows_after', 'exact', 'phase', 'steady_calls',
  'steady_busy',
                    'steady', 'rest', 'streak', 'ceiling', 'mean'}
local OF_ERRORS = {'value', 'limit', 'frozen', 'grows_after', 'cut'}
local OUTCOMES = {o = 'ok', d = 'dropped', i = 'ignored'}

-- "min max start window_us samples" for Latency, "min max start" for Errors.
local function read_adaptive(text)
  local rules = {}
  for number in text:gmatch('%S+') do rules[#rules + 1] = tonumber(number) end
  return {min = rules[1], max = rules[2], start = rules[3], window = rules[4], need = rules[5]}
end

local function between(low, value, high) return math.min(math.max(value, low), high) end

local function restart(it, at, settling)
  if it.rules.window then
    it.begin = at + settling
    it.calls, it.succeeded, it.busy, it.failed = 0, 0, 0, 0
  else
    it.since, it.succeeded, it.used = at + settling, 0, 0
  end
end

local function be_steady(it, at, rest)
  it.phase, it.rest = STEADY, rest
  it.steady_calls, it.steady_busy, it.steady = 0, 0, 0
  restart(it, at, it.mean)
end

-- The numbers in a text, by field name; false if it is damaged.
local function read_fields(it, fields, text)
  local i = 0
  for word in text:gmatch('%S+') do
    i = i + 1
    local number = tonumber(word)
    if not number or not fields[i] or not (math.abs(number) < 2^60) then return false end
    it[fields[i]] = number
  end
  return i == #fields
end

-- What is counted in a window (rules/window.lua), and since when; nil if it is damaged.
local function unpack_window(window)
  if #(window or '') ~= WINDOW_BYTES then return nil end
  local mark, begin, ends, need, calls, succeeded, busy, failed = struct.unpack(WINDOW, window)
  local is_known = mark == 1 or mark == 2
  if is_known and math.max(math.abs(begin), math.abs(ends), need, calls, succeeded, busy,
      failed) < 2^60 then
    return begin, calls, succeeded, busy, failed
  end
end

-- The adaptation of a record; a new one if there is none or it was damaged, at `value` if that is
-- allowed.
local function read_adaptation(rules, record, window, at, value)
  local it = {rules = rules, changes = {}}
  local is_sound = read_fields(it, rules.window and OF_LATENCY or OF_ERRORS, record or '')
  if not (is_sound and it.value >= rules.min and it.value <= rules.max and it.limit >= rules.min
          and it.limit <= rules.max and it.value % 1 == 0 and it.limit % 1 == 0) then
    if not (value and value >= rules.min and value <= rules.max and value % 1 == 0) then
      value = rules.start
    end
    it = {rules = rules, changes = {}, value = value, limit = value, frozen = 0, grows_after = at,
      exact = value,
          phase = STEADY, steady_calls = 0, steady_busy = 0, steady = 0, rest = 0, streak = 0,
            ceiling = 0,
          mean = 0, cut = 0}
    window = ''
  end
  local begin, calls, succeeded, busy, failed = unpack_window(window)
  if not begin then
    restart(it, at, 0)
  elseif rules.window then
    it.begin, it.calls, it.succeeded, it.busy, it.failed = begin, calls, succeeded, busy, failed
  else
    it.since, it.succeeded, it.used = begin, succeeded, busy
  end
  return it
end

-- .adapt, a text, and .window, packed.
local function adaptation_record(it)
  local words, rules = {}, it.rules
  for i, field in ipairs(rules.window and OF_LATENCY or OF_ERRORS) do
    words[i] = string.format('%.17g', it[field])
  end
  local window = rules.window and {it.begin, it.begin + rules.window, rules.need, it.calls,
    it.succeeded, it.busy, it.failed}
    or {it.since, 0, it.value, it.succeeded, it.succeeded, it.used, 0}
  return table.concat(words, ' '), struct.pack(WINDOW, it.frozen == 1 and 2 or 1, unpack(window))
end

-- Take another value. What has changed is added to `it.changes`: "at_us old new reason".
local function move(it, at, value, reason)
  local new = between(it.rules.min, math.floor(value + 0.5), it.rules.max)
  if new ~= it.value then
    it.changes[#it.changes + 1] = string.format('%.0f %d %d %s', at, it.value, new, reason)
  end
  it.value, it.limit = new, new
  restart(it, at, 0)
end

local function go_to(it, at, value, reason, rest)
  move(it, at, value, reason)
  it.exact = between(it.rules.min, value, it.rules.max)
  be_steady(it, at, rest)
end

local function settle_value(it, at)
  it.limit = it.value
  be_steady(it, at, CALM)
end

local function probe(it, at, phase, limit)
  it.phase, it.limit = phase, limit
  restart(it, at, it.mean)
end

local function grown(it, at, value, used)
  if at < it.grows_after then return it.exact end
  value = math.min(value, math.max(GROWTH * used, it.exact))
  if it.ceiling > 0 and value > it.ceiling * MARGIN then
    value = math.max(it.ceiling * MARGIN, it.exact)
    it.streak = 0
    it.ceiling = it.ceiling * FADE
  end
  return value
end

local function compare(it, at, low, high)
  local low_rate, low_used = low[1] / low[3], low[2] / low[3]
  local high_rate, high_used = high[1] / high[3], high[2] / high[3]
  local probed = it.phase == BELOW and it.limit or it.value
  local more_used = (high_used - low_used) / (high_used + low_used)
  if more_used < DISTINCT or low_used < BOUND * probed then
    it.streak = 0
    settle_value(it, at)
    return
  end
  local elasticity = (high_rate - low_rate) / (high_rate + low_rate) / more_used
  local step = (between(0, elasticity, 1) - WANTED) * GAIN
  it.streak = step > MOVE and it.streak + 1 or 0
  if it.streak > 1 then step = step * BOLD end
  local value = it.exact * (1 + step)
  if step > 0 then value = grown(it, at, value, high_used) end
  local reason = string.format('%.3g/s with %.1f in use, %.3g/s with %.1f',
                               low_rate * 1e6, low_used, high_rate * 1e6, high_used)
  value = between(it.rules.min, value, it.rules.max)
  local has_moved = math.floor(value + 0.5) ~= it.value
  if not has_moved then it.streak = 0 end
  local is_shrinking = has_moved and step < -MOVE
  go_to(it, at, value, reason, (it.streak > 0 or is_shrinking) and 0 or CALM)
end

local function retreat(it, at, took)
  local succeeding = (it.busy - it.failed) / took
  if succeeding * 2 > it.limit then it.ceiling = it.limit end
  local reason = string.format('%d of %d dropped', it.calls - it.succeeded, it.calls)
  local value = math.max(math.min(succeeding, it.limit * MARGIN), it.limit * 0.5)
  it.streak = 0
  go_to(it, at, value, reason, CALM)
end

local function end_steady_window(it, at, took)
  if it.busy * 2 < it.value * took then
    restart(it, at, 0)
    return
  end
  it.steady_calls = it.steady_calls + it.succeeded
  it.steady_busy = it.steady_busy + it.busy
  it.steady = it.steady + took
  if it.rest > 0 then
    it.rest = it.rest - 1
    restart(it, at, 0)
    return
  end
  local below = math.min(math.floor(it.value * PROBE), it.value - 1)
  if below >= it.rules.min then
    probe(it, at, BELOW, below)
  elseif it.value < it.rules.max and at >= it.grows_after then
    probe(it, at, ABOVE, it.value + 1)
  else
    settle_value(it, at)
  end
end

local function end_window(it, at)
  local took = at - it.begin
  it.mean = math.min(math.floor(it.busy / it.calls), LONGEST_SETTLING)
  if (it.calls - it.succeeded) * FAILURES > it.calls then
    retreat(it, at, took)
  elseif it.phase == STEADY then
    end_steady_window(it, at, took)
  else
    local seen, steady = {it.succeeded, it.busy, took}, {it.steady_calls, it.steady_busy, it.steady}
    if it.phase == BELOW then compare(it, at, seen, steady) else compare(it, at, steady, seen) end
  end
end

local function count_for_latency(it, at, held, outcome, slots)
  if at < it.begin then
    if at < it.begin - LONGEST_SETTLING then restart(it, at, 0) end
    return
  end
  it.busy = it.busy + held * slots
  if outcome == 'ignored' then return end
  it.calls = it.calls + 1
  if outcome == 'ok' then
    it.succeeded = it.succeeded + 1
  else
    it.failed = it.failed + held * slots
  end
  if at >= it.begin + it.rules.window and it.calls >= it.rules.need then end_window(it, at) end
end

local function grow_by_one(it, at)
  local took = math.max(at - it.since, 1)
  if it.used * 2 >= it.value * took and at >= it.grows_after and it.value < it.rules.max then
    move(it, at, it.value + 1, string.format('%d calls without a drop', it.succeeded))
  else
    restart(it, at, 0)
  end
end

local function count_for_errors(it, at, held, outcome, slots)
  it.used = it.used + held * slots
  if outcome == 'dropped' then
    if at - held >= it.cut or at < it.cut then
      it.cut = at
      local cut = math.max(math.min(math.floor(it.value * ERRORS_CUT), it.value - 1), it.rules.min)
      move(it, at, cut, 'a call was dropped')
    end
  elseif outcome == 'ok' then
    it.succeeded = it.succeeded + 1
    if it.succeeded >= it.value then grow_by_one(it, at) end
  end
end

-- Count an acquisition that ended, by its sample (all times in us); `it.limit` is the limit from
-- now on.
local function note_end(it, at, held, sample, slots)
  local outcome, retry_after = OUTCOMES[sample:sub(1, 1)], tonumber(sample:match(' (%d+)')) or 0
  if retry_after > 0 then it.grows_after = math.max(it.grows_after, at + retry_after) end
  if it.frozen == 1 then return end
  if it.rules.window then
    count_for_latency(it, at, held, outcome, slots)
  else
    count_for_errors(it, at, held, outcome, slots)
  end
end

-- Freeze it at a value, or at the current one.
function adapting.freeze_it(it, at, value)
  it.frozen = 1
  move(it, at, value or it.value, 'frozen')
end

-- Thaw it: it moves again, from the current value.
function adapting.thaw_it(it, at)
  if it.frozen == 0 then return end
  it.frozen = 0
  if it.rules.window then
    it.exact, it.streak, it.mean = it.value, 0, 0
    be_steady(it, at, 0)
  else
    restart(it, at, 0)
  end
end
