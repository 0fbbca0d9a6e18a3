-- tiers/repair.lua: repair a Tiers object that has lost a key, or whose keys have contents that our
-- scripts did not write. Not a script.
--
-- The claims in state are the truth: all other keys, and the counts in state, are rebuilt from
-- them. A claim is written and removed together with its entries in the other keys, so one without
-- them is a sign of damage.

local is_sound, has_claims
do  -- a script can have 200 local names
  -- The members of a sorted set with their scores.
  local function scores_in(key)
    local scores, flat = {}, redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
    for i = 1, #flat, 2 do scores[flat[i]] = flat[i + 1] end
    return scores
  end

  local weights = {}  -- of keys that take turns, and start again

  -- Read all of state, and start to count again: the ids of the claims.
  local function forget_counts()
    local fields, ids = redis.call('HGETALL', state), {}
    for i = 1, #fields, 2 do known[fields[i]] = known[fields[i]] == nil and fields[i + 1] or known[fields[i]] end
    for i = 1, #fields, 2 do
      local field = fields[i]
      if string.match(field, '^%d') then
        local node = read_node(field)
        weights[field] = node.share and node.share.weight
        node.held, node.waiting, node.top, node.kept, node.kept_slots = 0, 0, 0, nil, nil
        node.share, node.heads = nil, nil
        if node.rate then
          node.listed = false
          charge(node, 0)
        end
        change(node)
      elseif string.sub(field, 1, 1) == '?' then
        if blocked_until <= now then put(field, false) end
      elseif string.sub(field, 1, 1) == '>' then
        put(field, false)
      elseif string.sub(field, 1, 1) == '$' then
        local until_us = string.match(known[field] or '', '^(%d+) ')
        if until_us then redis.call('ZADD', cleanup, until_us, 'e ' .. string.sub(field, 2)) end
      elseif not string.find(field, '^[.%%&]') then
        ids[#ids + 1] = field
      end
    end
    return ids
  end

  -- The claims of ids that hold something, by id, without those whose numbers somebody else had before.
  local function sound_claims(ids)
    local claims, ranges = {}, {}
    for _, id in ipairs(ids) do
      local claim = read_claim(id)
      claims[id] = claim
      if not claim then put(id, false) end
      local widest = claim and not waits(claim) and names_of(claim.path)[widest_tier]
      if widest then
        for low, high in each_range(claim.numbers) do ranges[#ranges + 1] = {widest, low, high, id} end
      end
    end
    table.sort(ranges, function(one, other)
      if one[1] ~= other[1] then return one[1] < other[1] end
      return one[2] < other[2]
    end)
    local last
    for _, each in ipairs(ranges) do
      if last and last[1] == each[1] and each[2] <= last[3] then
        local later = claims[each[4]] and claims[last[4]] and claims[each[4]].token < claims[last[4]].token and last or each
        claims[later[4]] = nil
        put(later[4], false)
        if later == last then last = each end
      else
        last = each
      end
    end
    return claims
  end

  -- Rebuild all keys from the claims, and from the deadlines that are left. Whoever had a deadline
  -- only in a lost key gets a full interval.
  function rebuild()
    local held_until, alive_until, heads = scores_in(holders), scores_in(waiters), {}
    put('.large', false)
    put('.suspect', false)
    redis.call('DEL', holders, waiters, ttls, queue, parked, unfinished, numbers, refills, cleanup, turns.passed,
               turns.shares)
    turns.waiting, turns.passing = 0, {}
    put('.time', false)
    local widest_nodes, ids = {}, forget_counts()
    turns.read(known['.shape'])
    for id, claim in pairs(sound_claims(ids)) do
      local granted, path_nodes, needs = not waits(claim), nodes_of(claim.path), needs_of(id)
      local alive = granted and held_until[id] or not granted and alive_until[id] or seconds(now + claim.interval)
      redis.call('ZADD', granted and holders or waiters, alive, id)
      for _, node in ipairs(path_nodes) do
        if not granted then
          node.waiting = node.waiting + 1
        elseif not node.rate then
          node.held = node.held + need_of(node, needs)
        end
        change(node)
      end
      longest = math.max(longest, tonumber(claim.interval))
      last_ticket = math.max(last_ticket, claim.ticket)
      if granted then
        token = math.max(token, claim.token)
        widest_nodes[path_nodes[widest_tier]] = true
        if claim.ttl ~= '-' then
          redis.call('ZADD', ttls, seconds(claim.granted + claim.ttl), id)
          put('.timed', '1')
        end
      else
        count_large(id, 1)
        turns.waiting = turns.waiting + 1
        redis.call('ZADD', queue, 0, claim.path .. ' ' .. turns.rank_text(id, claim.ticket) .. ' ' .. id)
        if turns.by then turns.enter(path_nodes[turns.by], weights[path_nodes[turns.by].name] or 1) end
        local head, own = heads[claim.path], turns.head(turns.rank_text(id, claim.ticket), claim.path, id)
        if not head or turns.comes_before(own, head) then heads[claim.path] = own end
      end
    end
    put('.interval', string.format('%.17g', longest))
    put('.ticket', whole(last_ticket))
    put('.token', whole(token))
    for node in pairs(widest_nodes) do recount_numbers(node) end
    local oldest_first = {}
    for _, head in pairs(heads) do oldest_first[#oldest_first + 1] = head end
    table.sort(oldest_first, turns.comes_before)
    for _, head in ipairs(oldest_first) do
      local path_nodes = nodes_of(head[2])
      local lacking = lacks(path_nodes, needs_of(head[3]), head)
      park_in_time(head, (lacking or path_nodes[1]).name)
      if not lacking then look_at(path_nodes[1]) end
    end
    for key = first_key + 1, first_key + 11 do fresh[KEYS[key]] = true end
  end

  -- --------------------------------------------------------------------- looking for damage

  local SWEPT = 200  -- how many fields of state one heartbeat checks

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
    return has_all(holders, held) and has_all(waiters, waiting) and has_all(queue, queued) and has_all(parked, heads)
      and has_all(ttls, timed)
  end

  -- Check some fields of state; all of them within a third of the interval, if heartbeats come
  -- often enough.
  function is_sound()
    local cursor, not_before = string.match(known['.swept'] or '', '^(%d+) (%S+)$')
    if cursor == '0' and now < (tonumber(not_before) or 0) and now > not_before - longest then return true end
    local found = redis.call('HSCAN', state, cursor or '0', 'COUNT', SWEPT)
    if cursor == '0' or not cursor then not_before = seconds(now + longest / 3) end
    put('.swept', found[1] .. ' ' .. not_before)
    return fits(found[2])
  end

  -- Whether some ids that are not where they should be still have a claim.
  function has_claims(ids)
    if #ids == 0 then return false end
    fetch(ids)
    for _, id in ipairs(ids) do
      if read_claim(id) then return true end
    end
    return false
  end
end
