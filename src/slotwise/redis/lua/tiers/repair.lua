-- tiers/repair.lua: repair a Tiers object that has lost a key, or whose keys have contents that our
-- scripts did not write. Not a script.
--
-- The claims in state are the truth: all other keys, and the counts in state, are rebuilt from
-- them. A claim is written and removed together with its entries in the other keys, so one without
-- them is a sign of damage.

made_when_needed(repairs, function()
  -- An entry does not agree with the others: the next call rebuilds all of them. Until then, keys may
  -- be created by callers that assume they exist.
  function repairs.suspect()
    put('.suspect', '1')
    for _, key in ipairs({keys.holders, keys.waiters, keys.queue}) do fresh[key] = true end
  end

  -- One call does as much of it as this: about 2 ms. Then all calls are asked to be made again (repairs.REPLY), so that nothing
  -- changes until it is done. How far it has come is in .suspect, "step place":
  --   fields   what HSCAN has next: counts are forgotten, claims are put into holders or waiters, and what holders
  --            have of the widest tier is noted in unfinished, "node first last token id"
  --   numbers  those notes in their order: what is between them is free
  --   holders, waiters  by their rank: they are counted
  --   heads    the first of each path is parked
  local EFFORT = 200
  local SOME = 40  -- how many entries are read at once
  local EFFORT_OF = {fields = 1, numbers = 0.4, holders = 1.2, waiters = 1.6, heads = 4}
  local steps = {}

  local function begin()
    repairs.unlink(unpack(KEYS, first_key + 3, first_key + 11))
    put('.large', false)
    put('.time', false)
    put('.looking', false)
    turns.waiting, turns.passing = 0, {}
    turns.read(known['.shape'])
    return 'fields', '0'
  end

  local function forget_counts(name)
    local node = read_node(name)
    node.held, node.waiting, node.top, node.kept, node.kept_slots, node.heads = 0, 0, 0, nil, nil, nil
    if node.share then node.share = {tag = 0, weight = node.share.weight, nodes = {}} end
    if node.rate then
      node.listed = false
      buckets.charge(node, 0)
    end
    change(node)
  end

  -- Give a claim an entry where it belongs, and only there. Whoever had a deadline only in a lost key gets a full interval.
  local function file(id, claim, entries)
    local granted = not waits(claim)
    local interval = tonumber(string.match(claim.before, '^%S+'))
    longest = math.max(longest, interval)
    last_ticket = math.max(last_ticket, claim.ticket)
    local own = granted and entries.held or entries.waiting
    own[#own + 1], own[#own + 2] = seconds(now + interval), id
    if not granted then return end
    token = math.max(token, tonumber(claim.token))
    if claim.ttl ~= '-' then
      entries.timed[#entries.timed + 1], entries.timed[#entries.timed + 2] = seconds(claim.granted + claim.ttl), id
      put('.timed', '1')
    end
    local widest = names_of(claim.path)[widest_tier]
    for low, high in each_range(widest and claim.numbers or '') do
      entries.taken[#entries.taken + 1] = 0
      entries.taken[#entries.taken + 1] = table.concat({widest, padded(low), padded(high), padded(claim.token), id}, ' ')
    end
  end

  function steps.fields(place)
    local found = redis.call('HSCAN', keys.state, place, 'COUNT', SOME)
    local entries = {held = {}, waiting = {}, timed = {}, taken = {}, ended = {}}
    for i = 1, #found[2], 2 do
      local field, kind = found[2][i], string.sub(found[2][i], 1, 1)
      if known[field] == nil then known[field] = found[2][i + 1] end
      if string.find(kind, '%d') then
        forget_counts(field)
      elseif kind == '>' then
        put(field, false)
      elseif kind == '$' then
        local until_us = string.match(known[field] or '', '^(%d+) ')
        if until_us then
          entries.ended[#entries.ended + 1], entries.ended[#entries.ended + 2] = until_us, 'e ' .. string.sub(field, 2)
        end
      elseif not string.find(kind, '[.%%&]') then
        local claim = read_claim(field)
        if claim then file(field, claim, entries) else put(field, false) end
      end
    end
    call_in_chunks(entries.held, 'ZADD', keys.holders, 'NX')
    call_in_chunks(entries.waiting, 'ZADD', keys.waiters, 'NX')
    call_in_chunks(entries.timed, 'ZADD', keys.ttls)
    call_in_chunks(entries.taken, 'ZADD', keys.unfinished)
    call_in_chunks(entries.ended, 'ZADD', keys.cleanup)
    if found[1] == '0' then return 'numbers', '', #found[2] / 2 end
    return 'fields', found[1], #found[2] / 2
  end

  local function read_taken(record)
    local name, low, high, its_token, id = string.match(record, '^(%S+) (%d+) (%d+) (%d+) (%S+)$')
    return {name = name, low = tonumber(low), high = tonumber(high), token = tonumber(its_token), id = id, record = record}
  end

  local function take(taken)
    local node = read_node(taken.name)
    if taken.low > node.top + 1 then free_numbers(node, range(node.top + 1, taken.low - 1)) end
    node.top = math.max(node.top, taken.high)
    change(node)
  end

  -- A number that two have belongs to the one that was granted first. The other claim is over, and all is begun anew.
  function steps.numbers(place)
    local is_again, before = string.sub(place, 1, 1) == '!', string.gsub(place, '^!', '')
    local found = redis.call('ZRANGEBYLEX', keys.unfinished, before == '' and '-' or '(' .. before, '+', 'LIMIT', '0', SOME)
    local is_all, last = #found < SOME, nil
    for _, record in ipairs(found) do
      local taken = read_taken(record)
      if last and last.name == taken.name and taken.low <= last.high then
        local later = taken.token < last.token and last or taken
        is_again = true
        put(later.id, false)
        redis.call('ZREM', keys.holders, later.id)
        redis.call('ZREM', keys.ttls, later.id)
        redis.call('ZREM', keys.unfinished, later.record)
        if later == last then last = taken end
      else
        if last then
          take(last)
          before = last.record
        end
        last = taken
      end
    end
    if not is_all then return 'numbers', (is_again and '!' or '') .. before, #found end
    if last then take(last) end
    if is_again then
      for _, node in pairs(nodes) do node.freed = nil end
      return begin()
    end
    repairs.unlink(keys.unfinished)
    return 'holders', '0', #found
  end

  -- Call a function for the next in holders or waiters that belong there, and remove the others.
  local function count(key, place, is_waiting, visit)
    local ids, others, paths, claims, unread = redis.call('ZRANGE', key, place, place + SOME - 1), {}, {}, {}, {}
    for _, id in ipairs(ids) do note_unread(id, unread) end
    fetch(unread)
    for i, id in ipairs(ids) do
      local claim = read_claim(id)
      claims[i] = claim and waits(claim) == is_waiting and claim or false
      if claims[i] then paths[#paths + 1] = claim.path end
    end
    fetch_paths(paths)
    for i, id in ipairs(ids) do
      if claims[i] then
        visit(id, claims[i], nodes_of(claims[i].path))
      elseif blocked_until <= now or is_waiting then  -- else it is one that doesn't know yet
        others[#others + 1] = id
      end
    end
    call_in_chunks(others, 'ZREM', key)
    return #ids == SOME, whole(place + #ids - #others), #ids
  end

  function steps.holders(place)
    local is_more, after, counted = count(keys.holders, tonumber(place), false, function(id, claim, path_nodes)
      local needs = needs_of(id)
      for _, node in ipairs(path_nodes) do
        if not node.rate then node.held = node.held + need_of(node, needs) end
        change(node)
      end
    end)
    if is_more then return 'holders', after, counted end
    return 'waiters', '0', counted
  end

  function steps.waiters(place)
    local queued = {}
    local is_more, after, counted = count(keys.waiters, tonumber(place), true, function(id, claim, path_nodes)
      for _, node in ipairs(path_nodes) do
        node.waiting = node.waiting + 1
        change(node)
      end
      count_large(id, 1)
      turns.waiting = turns.waiting + 1
      queued[#queued + 1], queued[#queued + 2] = 0, claim.path .. ' ' .. turns.rank_text(id, claim.ticket) .. ' ' .. id
      local key = turns.by and path_nodes[turns.by]
      if key then fair.enter(key, key.share and key.share.weight or 1) end
    end)
    call_in_chunks(queued, 'ZADD', keys.queue)
    if is_more then return 'waiters', after, counted end
    return 'heads', '', counted
  end

  function steps.heads(place)
    local heads = {}
    repeat
      local record = redis.call('ZRANGEBYLEX', keys.queue, place == '' and '-' or '[' .. place .. '!', '+', 'LIMIT', '0', '1')[1]
      if record then
        local path, text, id = string.match(record, '^(%S+) (%S+) (%S+)$')
        heads[#heads + 1], place = turns.head(text, path, id), path
      end
    until not record or #heads == SOME
    table.sort(heads, turns.comes_before)
    for _, head in ipairs(heads) do
      local path_nodes = nodes_of(head[2])
      local lacking = lacks(path_nodes, needs_of(head[3]), head)
      park_in_time(head, (lacking or path_nodes[1]).name)
      if not lacking then look_at(path_nodes[1]) end
    end
    if #heads == SOME then return 'heads', place, #heads end
    return nil, nil, #heads
  end

  -- Rebuild all keys from the claims, and from the deadlines that are left; from the beginning if something else has changed
  -- since the last part of it. Returns true if that isn't finished, or if that is enough for this call.
  function repairs.rebuild(is_changed)
    local step, place = string.match(known['.suspect'] or '', '^(%l+) ?(.*)$')
    local is_new = is_changed or not steps[step]
    if is_new then step, place = begin() end
    local effort = turns.renewed / 10
    repairs.is_under_way = true
    while step and effort < EFFORT do
      local done, cost = nil, EFFORT_OF[step]
      step, place, done = steps[step](place)
      effort = effort + cost * (done or 1) + 5
    end
    put('.suspect', step and step .. ' ' .. place or false)
    put('.interval', string.format('%.17g', longest))
    put('.ticket', whole(last_ticket))
    put('.token', whole(token))
    for key = first_key + 1, first_key + 11 do fresh[KEYS[key]] = true end
    -- Nobody could send heartbeats while that took several calls.
    if not step and not is_new then put('.grace', seconds(now + longest)) end
    local is_enough = step ~= nil or not is_new or effort > EFFORT / 2
    repairs.is_under_way = step ~= nil
    if is_enough then save() end
    repairs.is_under_way = false
    return is_enough
  end

  -- --------------------------------------------------------------------- looking for damage

  local SWEPT = 120  -- how many fields of state one heartbeat checks

  -- Whether all of some records are in a sorted set.
  local function has_all(key, records)
    for from = 1, #records, CHUNK do
      local scores = redis.call('ZMSCORE', key, unpack(records, from, math.min(from + CHUNK - 1, #records)))
      for _, score in ipairs(scores) do
        if not score then return false end
      end
    end
    return true
  end

  -- Whether some fields of state agree with the other keys.
  local function fits(fields)
    local held, waiting, queued, heads, timed, names = {}, {}, {}, {}, {}, {}
    for i = 1, #fields, 2 do
      local field, kind = fields[i], string.sub(fields[i], 1, 1)
      if known[field] == nil then known[field] = fields[i + 1] end
      local text = known[field]  -- false if this call has removed it
      if kind == '>' and text then
        local name, ticket, id = string.match(text, '^(%S+) (%d[%d.]+) (%S+)$')
        if not name then return false end
        heads[#heads + 1] = parked_record(name, turns.head(ticket, string.sub(field, 2), id), turns.by and read_node(name).is_by_key)
      elseif kind == '%' and text then
        adapting.forget_if_idle(string.sub(field, 2), text)
      elseif text and not string.find(kind, '[%d.$?>&]') then
        local claim = read_claim(field)
        if not claim then return false end
        for _, name in ipairs(names_of(claim.path)) do names[name] = true end
        if waits(claim) then
          waiting[#waiting + 1] = field
          queued[#queued + 1] = claim.path .. ' ' .. turns.rank_text(field, claim.ticket) .. ' ' .. field
          names['>' .. claim.path] = true
        else
          held[#held + 1] = field
          if claim.ttl ~= '-' then timed[#timed + 1] = field end
        end
      end
    end
    local unread = {}
    for name in pairs(names) do
      if known[name] == nil then unread[#unread + 1] = name end
    end
    fetch(unread)
    for name in pairs(names) do  -- a bucket that is full is not written down
      if not known[name] and not rates[(tonumber(string.match(name, '^%d+')) or -1) + 1] then return false end
    end
    return has_all(keys.holders, held) and has_all(keys.waiters, waiting) and has_all(keys.queue, queued) and has_all(keys.parked, heads)
      and has_all(keys.ttls, timed)
  end

  -- Check some fields of state; all of them within a third of the interval, if heartbeats come
  -- often enough.
  function repairs.is_sound()
    local cursor, not_before = string.match(known['.swept'] or '', '^(%d+) (%S+)$')
    if cursor == '0' and now < (tonumber(not_before) or 0) and now > not_before - longest then return true end
    local found = redis.call('HSCAN', keys.state, cursor or '0', 'COUNT', SWEPT)
    if cursor == '0' or not cursor then not_before = seconds(now + longest / 3) end
    put('.swept', found[1] .. ' ' .. not_before)
    return fits(found[2])
  end

  -- Whether some ids have a claim that isn't where it belongs. A caller may be wrong about where that is, so the claim tells.
  function repairs.has_claims(ids)
    if #ids == 0 then return false end
    fetch(ids)
    for _, id in ipairs(ids) do
      local claim = read_claim(id)
      if claim and not redis.call('ZSCORE', waits(claim) and keys.waiters or keys.holders, id) then return true end
    end
    return false
  end
end)
