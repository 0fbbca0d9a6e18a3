-- semaphore/adaptive.lua: a value that adapts: how it is read, moved by what has ended, and saved. Part of semaphore/rules.lua; not
-- a script. How it moves is in base/adaptation.lua.

local CHANGES = 100        -- how many are kept
local LEARNT = 3600        -- how long (s) a value is kept after its last move if nobody uses it
local adaptations = {}     -- the functions of base/adaptation.lua
made_when_needed(adaptations, function()
-- include base/adaptation.lua
  adaptations.rules, adaptations.read, adaptations.record = read_adaptive, read_adaptation, adaptation_record
  adaptations.note_end, adaptations.freeze, adaptations.thaw = note_end, freeze, thaw
end)

-- The rules of an adaptive value in the text of .values; nil if it is fixed.
local function rules_in(values) return string.match(values or '', '^,(%d+ [^,]+),$') end

local function find_adaptation()
  if is_adaptation_known then return adaptation end
  adaptation, is_adaptation_known = nil, true
  local rules = rules_in(redis.call('HGET', state, '.values'))
  if rules then
    local facts = redis.call('HMGET', state, '.adapt', '.window', '.value')
    adaptation = adaptations.read(adaptations.rules(rules), facts[1], facts[2], now_us, tonumber(facts[3] or nil))
  end
  return adaptation
end

-- Save how an adaptive value has moved in this call; it is the semaphore's value from now on.
local function save_adaptation()
  if not (is_adaptation_known and adaptation and adaptation.is_changed) then return end
  adaptation.is_changed = false
  local record, window = adaptations.record(adaptation)
  local limit = whole(adaptation.limit)
  if redis.call('HGET', state, '.value') ~= limit then redis.call('SET', max, limit, 'KEEPTTL') end
  redis.call('HSET', state, '.adapt', record, '.window', window, '.value', limit)
  if #adaptation.changes == 0 then
    if redis.call('HEXISTS', state, '.changes') == 0 then redis.call('HSET', state, '.changes', '') end
    outlive(max, 60)
    return
  end
  local lines = {}
  for line in string.gmatch(redis.call('HGET', state, '.changes') or '', '[^\n]+') do lines[#lines + 1] = line end
  for _, change in ipairs(adaptation.changes) do
    lines[#lines + 1] = change
    local value, reason = string.match(change, '^%S+ %S+ (%S+) (.*)$')
    if reason ~= 'frozen' then messages[#messages + 1] = 'adapted ' .. value .. ' ' .. reason end
  end
  redis.call('HSET', state, '.changes', table.concat(lines, '\n', math.max(#lines - CHANGES + 1, 1)))
  for _, key in ipairs({state, max}) do outlive(key, LEARNT) end
  adaptation.changes = {}
end

-- Note that an acquisition has ended, which may move an adaptive value. It takes effect when saved.
local function count_end(claim, slots, sample)
  if not find_adaptation() then return end
  sample = sample or 'i-'
  adaptations.note_end(adaptation, now_us, held_for(sample, claim.granted, now_us), sample, slots)
  pause_us = math.max(pause_us, tonumber(string.match(sample, ' (%d+)p$')) or 0)
  adaptation.is_changed = true
end
