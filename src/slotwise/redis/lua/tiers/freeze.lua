-- tiers/freeze.lua: keep the value of an adaptive tier, or of one key of it, or let it move again.
-- KEYS  1-12 the Tiers object (tiers/state.lua)
-- ARGV  1 now (s; empty: the server's clock)   2 the loop client that calls   3 heartbeat_max_interval (s)
--       4 the tiers' names, as the caller was made   5 and their values
--       6 the tier's number   7 its node, or empty for all of the tier   8 "freeze" or "thaw"
--       9 the value to freeze it at; empty: the current one   10 for how long (s) it is remembered when nobody is there
-- Returns {"done", value}, {"conflict", tier or -1, its value} or {"closed", the reason if there is one},
-- followed by messages for the caller.
-- Mirrors PathLedger.expire, then PathLedger.freeze, or TierNodes.thaw.
-- include tiers/rules.lua
if open(1, ARGV[1]) then return redis.error_reply(repairs.REPLY) end
caller = ARGV[2]
local tier, name, is_freeze, value = tonumber(ARGV[6]) + 1, ARGV[7], ARGV[8] == 'freeze', tonumber(ARGV[9])
if known['.closed'] then return closed_reply() end
local clash = agreement.declare(ARGV[4], ARGV[5])
if clash then return {'conflict', clash - 1, agreement.conflicting(clash)} end
outlive(math.max(longest, tonumber(ARGV[3])))
expire()

local function steer(node)
  local it = adapting.read(node)
  if is_freeze then adapting.freeze_it(it, now_us, value) else adapting.thaw_it(it, now_us) end
  adapting.write(node, it)
  node.value = it.limit
  change(node)
  if node.waiting > 0 then touched[node.name] = node end
end

local last = name ~= '' and read_node(name)
if last then
  steer(last)
else
  local frozen = string.gsub(known['.frozen'] or '', whole(tier - 1) .. '=%S+ ?', '')
  if is_freeze then frozen = frozen .. whole(tier - 1) .. '=' .. (value and whole(value) or '-') .. ' ' end
  -- Those that are known, some in each call, which is made again until all are; .freezing is how far that has come. Those
  -- to come follow at once.
  local place = string.match(get('.freezing') or '', '^(%d+) ' .. ARGV[6] .. ' ' .. ARGV[8] .. ' ' .. ARGV[9] .. '$')
  local from, steered, steps = place or '0', 0, 0
  repeat
    local found = redis.call('HSCAN', keys.state, from, 'MATCH', '[%0-9]*', 'COUNT', 20)
    from, steps = found[1], steps + 1
    for i = 1, #found[2], 2 do
      local node_name = string.match(found[2][i], '^%%?(' .. whole(tier - 1) .. ':%S*)$')
      if node_name then
        last, steered = read_node(node_name), steered + 1
        steer(last)
      end
    end
  until from == '0' or steered >= AT_ONCE / 2 or steps == 10
  put('.frozen', frozen ~= '' and frozen)
  adapting.frozen[tier] = is_freeze and (value or values[tier]) or nil
  put('.freezing', from ~= '0' and from .. ' ' .. ARGV[6] .. ' ' .. ARGV[8] .. ' ' .. ARGV[9])
  if from ~= '0' then
    serve()
    outlive(tonumber(ARGV[10]))
    save()
    return redis.error_reply(repairs.REPLY)
  end
end
serve()
outlive(tonumber(ARGV[10]))
return answer({'done', last and value_of(last) or value or values[tier]})
