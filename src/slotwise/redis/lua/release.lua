-- release.lua: release acquisitions, or remove them from the queue; waiters that fit then are
-- served at once.
-- KEYS  the limit (rules/state.lua)
-- ARGV  1 now (s; empty: the server's clock)
--       2 where names are noted, or empty
--       3 the loop client that calls, or empty
--       4 of a semaphore the pattern of foreign notification lists, else empty
--       5 "count" to be told how full it is, else empty
--       6... acquisition ids; with "~" in front if nobody has seen the grant, so that what it took
--         of rates goes back, followed by a space and "tier=units,...", what it has really taken of
--         rates, and by a space and a sample for adaptive tiers (rules/window.lua)
-- Returns {for each id a digit: 1 it held, 2 it waited, 0 neither}, and if asked for, of the last
-- that waited, or of a semaphore: the node that its group lacked, its value, held, waiting (a text
-- while it is paused: "number ms"; the value of a rate is its text), and of a semaphore the oldest
-- holders ("", 0, 0, 0 if none waited); followed by messages for the caller.
-- Mirrors PathLedger.expire, then PathLedger.release or cancel for all ids at once.
-- include rules/window.lua
-- include rules/quick.lua
local fine, released = pcall(quick.release)  -- the rules reset what is damaged
if fine and released then return released end
-- include rules/state.lua
local ids, unseen, corrections, samples = {}, {}, {}, {}
for i = 6, #ARGV do
  local id, rest = ARGV[i]:match('^(%S+) (.*)$')
  id = id or ARGV[i]
  unseen[i - 5] = id:byte() == 126  -- "~"
  ids[i - 5] = unseen[i - 5] and id:sub(2) or id
  corrections[i - 5], samples[i - 5] = rest, string.match(rest or '',
    '%f[%w]([odi][%d-]%d* ?%d*p?[%d.]*)$')
end

local function run()
  open(1, #KEYS, ARGV[1], {unpack(ids)})
  caller, pattern = ARGV[3], ARGV[4]
  begin_though_full()
  local digits, lacked = {}, nil
  expire()
  for i, id in ipairs(ids) do
    local claim, rest = read_claim(id), corrections[i]  -- it may have been granted just now
    if rest and rest:find('=', 1, true) then buckets.correct(id, rest) end
    local waited, name = 0, nil
    if not claim or is_waiting(claim) then waited, name = queue.leave(id) end
    if waited == 1 then
      digits[i], lacked = '2', name
    elseif release(id, samples[i]) > 0 then
      digits[i] = '1'
      if unseen[i] and next(rates) then buckets.refund(id) end
    else
      digits[i] = unseen[i] and not widest_tier and buckets.refund(id) and '1' or '0'
    end
  end
  queue.serve()
  local reply = {table.concat(digits)}
  if ARGV[5] ~= '' then
    lacked = lacked or is_line and '0:'
    reply[2], reply[3], reply[4], reply[5] = '', 0, 0, 0
    if lacked then reply[2], reply[3], reply[4], reply[5] = in_the_way(read_node(lacked)) end
    if is_line then
      reply[6] = line.oldest_holders()
      -- A foreign client may have told one through a list that nobody reads.
      for _, id in ipairs(ids) do line.drop_list(id) end
    end
  end
  return answer(reply)
end
return guarded(run)
