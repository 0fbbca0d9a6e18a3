-- tiers/release.lua: release paths, or remove them from the queue; waiters that fit then are served at once.
-- KEYS  1-12 the Tiers object (tiers/state.lua)
-- ARGV  1 now (s; empty: the server's clock)   2 the loop client that calls, or empty
--       3... acquisition ids; with "~" in front if nobody has seen the grant, so that what it took of rates goes
--       back; followed by a space and "tier=units,...", what it has really taken of rates, and by a space and a
--       sample for adaptive tiers (base/window.lua)
-- Returns {for each id a digit: 1 it held, 2 it waited, 0 neither; of the last that waited: the node
--          that its group lacked, its value, held, waiting (a text while it is paused: "number ms"); the value of a rate is its text}
-- (the last four "", 0, 0, 0 if none waited), followed by messages for the caller.
-- Mirrors PathLedger.expire, then PathLedger.release or cancel for all ids at once.
-- include tiers/at_rest.lua

-- Release one path of an object at rest: the reply, or nil if that is left to the rules.
function at_rest.release()
  local id = ARGV[3]
  if #ARGV ~= 3 or string.find(id, '[~ *]') then return nil end
  local read = at_rest.read(ARGV[1], id)
  local interval, ttl, ticket, number, path =
    string.match(read and read.field or '', '^(%S+) (%S+) (%S+) [%d.]+ (%d+) %d+ (%S+) ')
  number = tonumber(number)
  if not (number and number > 0 and tonumber(interval) and tonumber(ticket)) then return nil end
  local names, idle = {}, 0
  for name in string.gmatch(path, '[^,]+') do names[#names + 1] = name end
  local records, held, top = redis.call('HMGET', KEYS[1], unpack(names)), nil, nil
  for i = 1, #names do
    held, top = at_rest.counts(records[i])
    if not top or held == 0 then return nil end
    if i < #names then at_rest.put_counts(read, names[i], held - 1, top) end
  end
  if redis.call('ZREM', KEYS[2], id) == 0 then return nil end
  if ttl ~= '-' then redis.call('ZREM', KEYS[4], id) end
  local widest = names[#names]
  if held > 1 then
    redis.call('ZADD', KEYS[8], '0', string.format('%s %016d', widest, number))
    at_rest.expire(read, KEYS[8])
  elseif top > 1 then
    redis.call('ZREMRANGEBYLEX', KEYS[8], '[' .. widest .. ' ', '(' .. widest .. '!')
  end
  at_rest.put_counts(read, widest, held - 1, top)
  read.idle[#read.idle + 1] = id
  at_rest.save(read)
  return {'1', '', 0, 0, 0}
end

local released = at_rest.release()
if released then return released end
-- include tiers/rules.lua
local ids, unseen, corrections, samples = {}, {}, {}, {}
for i = 3, #ARGV do
  local id, space = ARGV[i], string.find(ARGV[i], ' ', 1, true)
  if space then
    corrections[i - 2] = string.sub(id, space + 1)
    samples[i - 2] = string.match(corrections[i - 2], '%f[%w]([odi][%d-]%d* ?%d*p?[%d.]*)$')
    id = string.sub(id, 1, space - 1)
  end
  unseen[i - 2] = string.byte(id) == 126  -- "~"
  ids[i - 2] = unseen[i - 2] and string.sub(id, 2) or id
end
if open(1, ARGV[1], {unpack(ids)}) then return redis.error_reply(repairs.REPLY) end
caller = ARGV[2]
begin_though_full(keys.holders)
if blocked_until > now then losses.note_aware(ids) end
local digits, lacked = {}, nil
local claims, paths = {}, {}
for i, id in ipairs(ids) do
  claims[i] = read_claim(id) or false
  paths[#paths + 1] = claims[i] and claims[i].path or nil
end
fetch_paths(paths)
expire()
for i, id in ipairs(ids) do
  if changed[id] then claims[i] = read_claim(id) or false end  -- it may have been granted just now
  if corrections[i] and string.find(corrections[i], '=', 1, true) then buckets.correct(id, corrections[i]) end
end
local removed = redis.call('ZREM', keys.holders, unpack(ids))
for i, id in ipairs(ids) do
  local digit = '0'
  if known[id] and claims[i] and not waits(claims[i]) then
    removed = removed - 1
    free_claim(id, claims[i], samples[i])
    if unseen[i] then buckets.refund(id) end
    digit = '1'
  elseif unseen[i] and not widest_tier and buckets.refund(id) then
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
if removed ~= 0 then repairs.suspect() end
serve()
local reply = {table.concat(digits), '', 0, 0, 0}
if lacked then
  local node = read_node(lacked)
  reply[2], reply[3], reply[4], reply[5] = in_the_way(node)
end
return answer(reply)
