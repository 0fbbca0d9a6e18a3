-- rules/fair.lua: fair order, in which keys take turns. Not a script.
-- It mirrors FairOrder (slotwise/_ledger/fair.py) and what PathQueue does with turns; the rule is
-- number 9 in slotwise/_ledger/paths.py.
--
-- The turn of a head is the tag of its key, then its rank (rules/turns.lua). All numbers are
-- computed in the same steps as in Python, and stored with 17 digits, so that both get the same
--   results. state   node -> its record, followed by "=tag weight node*count*rank,..." if somebody
--           waits for that key, with the nodes of other tiers where groups of the key are parked:
--           how many there are, and the rank of the first;
--           .time, the tag of the latest grant
--   shares  zset  node -> the tag of a key that nobody waits for, if it is after .time
--   parked  zset  for the nodes of the keys themselves as without fair order, since all there have
--           the same tag. For other nodes it has two kinds of records, side by side:
--             "node!key turn path id"   as without fair order, but by key
--             "node tag turn path id"   the tag in hexadecimal digits that sort like the number.
--             Each key that is parked at a node has one that is not after its turn. Some are stale,
--             and are corrected only when they come to the front: so a grant costs nothing for keys
--             that are not looked at.

made_when_needed(fair, function()
  local hexes, texts = {}, {}  -- caches by tag: most keys have the same tags
  local number_of_text = {}    -- of tags, weights and counts, likewise
  local key_names              -- by path
  local tags                   -- of keys that nobody waits for, as far as they were read
  -- the tag of the latest grant; whether that is later than what is written
  local time, is_later

  local function cached_number(text)
    local number = text and tonumber(text)
    if number then number_of_text[text] = number end
    return number
  end

  -- A number as text that reads back as exactly the same number.
  local function exact(number)
    local text = texts[number]
    if not text then
      text = string.format('%.17g', number)
      texts[number] = text
    end
    return text
  end

  -- A number >= 0 as text that sorts like the number.
  local function hex(number)
    local text = hexes[number]
    if not text then
      text = string.format('%08x%08x', struct.unpack('>I4I4', struct.pack('>d', number)))
      hexes[number] = text
    end
    return text
  end

  -- Begin with an object of this shape, in which the tier whose keys take turns has "=", and the
  -- one whose cost counts "+".
  function fair.begin(shape)
    local tier = 0
    for name in shape:gmatch('[^,]+') do
      tier = tier + 1
      if name:find('=', 1, true) then turns.by = tier end
      if name:find('+', 1, true) then turns.cost = tier end
    end
    turn_of, score_of, head_to_serve = fair.turn_of, fair.score_of, fair.head
    key_names, tags, is_later = {}, {}, false
    time = tonumber(known['.time']) or 0
  end

  -- The name of the node of a path whose key takes turns.
  function fair.key_of(path)
    local name = key_names[path]
    if not name then
      name = names_of(path)[turns.by]
      key_names[path] = name
    end
    return name
  end

  -- The share of a key that somebody waits for, parsed from the record of its node, starting at a
  -- position.
  function fair.read_share(text, from)
    local tag, weight, name, count, rank, others =
      text:match('^(%S+) (%S+) ([^,*]*)%*?(%d*)%*?(%d*)(.*)$', from)
    tag = number_of_text[tag] or cached_number(tag)
    if not tag then return nil end
    local first = rank ~= '' and {count = number_of_text[count] or cached_number(count),
      rank = rank + 0} or nil
    local share = {tag = tag, weight = number_of_text[weight] or cached_number(weight) or 1,
      places = {[name] = first}}
    if others ~= '' then
      for name, count, rank in others:gmatch('([^,*]+)%*(%d+)%*(%d+)') do
        share.places[name] = {count = tonumber(count), rank = tonumber(rank)}
      end
    end
    return share
  end

  function fair.share_text(share)
    local at = ''
    for name, its in pairs(share.places) do
      at = (at == '' and '' or at .. ',') .. name .. string.format('*%d*%d', its.count, its.rank)
    end
    return '=' .. exact(share.tag) .. ' ' .. exact(share.weight) .. ' ' .. at
  end

  -- The node of a path whose key takes turns; it has the share.
  local function key_node(path)
    local key = key_names[path] or fair.key_of(path)
    return nodes[key] or read_node(key)
  end

  -- That of a head, which is noted there.
  local function node_of(head)
    head.node = key_node(head[2])
    return head.node
  end

  -- The tag of the next request of a key.
  local function tag_of(node)
    if node.share then return node.share.tag end
    local tag = tags[node.name]
    if not tag then
      tag = tonumber(call('ZSCORE', keys.shares, node.name)) or 0
      tags[node.name] = tag
    end
    return math.max(time, tag)
  end

  -- Somebody begins to wait for the key of a node; the caller marks the node as changed.
  function fair.enter(node, weight)
    if not node.share then
      node.share = {tag = tag_of(node), weight = weight, places = {}}
      if tags[node.name] ~= 0 then
        call('ZREM', keys.shares, node.name)
        tags[node.name] = 0
      end
    end
    node.share.weight = weight  -- the latest request has the latest weight
  end

  local function remember_tag(key, tag)
    if tag > time then
      call('ZADD', keys.shares, exact(tag), key)
      tags[key], fresh[keys.shares] = tag, true
    end
  end

  -- Nobody waits for the key of a node any more; the caller marks the node as changed.
  function fair.leave(node)
    local share = node.share
    node.share = nil
    if share then remember_tag(node.name, share.tag) end
  end

  -- Note a grant while somebody waits; `weight` is a newcomer's.
  function fair.count_grant(path, needs, weight)
    local node, tier = key_node(path), turns.cost or widest_tier
    local share, start = node.share, tag_of(node)
    local cost = needs and tier and needs[tier] or 1
    if start > time then
      time, is_later = start, true
    end
    local tag = math.max(time, start + cost / (weight or share and share.weight or 1))
    if share then
      share.tag = tag
      change(node)
      if known['.large'] or next(rates) then fair.look_at_others(node.name, share) end
    else
      remember_tag(node.name, tag)
    end
  end

  -- Look at the nodes where a key that was just granted something is parked: the head of another
  -- key may come first there now, and need less, or less time.
  function fair.look_at_others(key, share)
    for name in pairs(share.places) do
      local node = read_node(name)
      local first = first_parked(node)
      if first and fair.key_of(first[2]) ~= key then
        if has_room(node, need_of(node, needs_of(first[3])), first[1]) then
          queue.look_at(node)
        elseif node.rate then
          dues.moved[name] = true
          buckets.look_in_time(node, first)
        end
      end
    end
  end

  -- Nobody waits any more.
  function fair.forget()
    time, tags, is_later = 0, {}, false
    put('.time', false)
    unlink(keys.shares, keys.parked)  -- what is left there is stale
    pending[keys.parked], added[keys.parked] = nil, nil
  end

  -- Write the virtual time, and forget the tags that are not after it.
  function fair.save()
    if not is_later then return end
    local text = exact(time)
    put('.time', text)
    call('ZREMRANGEBYSCORE', keys.shares, '-inf', text)
    is_later = false
  end

  -- Like turns.head, with room for what is noted there in fair order: a table that grows is made
  -- anew each time it doubles.
  function fair.head(text, path, id)
    if #text > 16 then return turns.head(text, path, id) end
    return {tonumber(text), path, id, text, nil, node = nil, tag = nil, turn = nil, place = nil,
      record = nil}
  end

  function fair.turn_of(head)
    local node = head.node or node_of(head)
    local share = node.share
    local tag = share and share.tag or tag_of(node)
    if head.tag ~= tag then
      local text = head[4]
      head.tag, head.turn = tag, (hexes[tag] or hex(tag)) .. ' '
        .. (head.rank and text:sub(1, 16) or text)
    end
    return head.turn
  end

  function fair.score_of(head) return tag_of(head.node or node_of(head)) end

  -- Read the nodes that have to be looked at first. A score has only the tag, perhaps an old one:
  -- the turns of the heads count.
  function fair.load_work(found)
    if #found == 2 * work.most then  -- with all that have the same tag as the last one
      local last = found[#found]
      -- the latest turn with this score
      work.bound = hex(tonumber(last)) .. ' ' .. string.rep('9', 16)
      found = call('ZRANGEBYSCORE', keys.unfinished, '-inf', last, 'WITHSCORES', 'LIMIT', '0',
        turns.MOST_AT_ONE_TAG)
    end
    local names = {}
    for i = 1, #found, 2 do note_unread(found[i], names) end
    fetch(names)
    for i = 1, #found, 2 do
      local name = found[i]
      local head = first_parked(read_node(name))
      -- perhaps its first head left in another call
      work.stored[name], dues.moved[name] = tonumber(found[i + 1]), true
      if head then queue_work(head, name) else work.taken[name] = true end
    end
  end

  -- ------------------------------------------------------------ records of keys at a node

  -- Like turns.comes_before, but by the turns in the records, which may be stale.
  function fair.stands_before(one, other)
    if one.place ~= other.place then return one.place < other.place end
    return (one.rank and one[1] or 0) < (other.rank and other[1] or 0)
  end

  -- Set the record of a head's key at a node.
  local function set_record(name, head)
    head.place = turn_of(head)
    head.record = name .. ' ' .. hexes[head.tag] .. ' ' .. head[4] .. ' ' .. head[2] .. ' '
      .. head[3]
  end

  -- A head has been parked at a node. Returns whether the record of its key is this head's now.
  function fair.park(head, node)
    local name, of_key, rank = node.name, head.node or node_of(head), head.rank or head[1]
    local share = of_key.share
    local its = share and share.places[name]
    change(of_key)
    if not share then
      -- The share was lost (an evicted or damaged key): write a record all the same, so that the
      -- head is found.
    elseif not its then
      share.places[name] = {count = 1, rank = rank}
    else
      its.count = its.count + 1
      if rank > its.rank then return end
      its.rank = rank
    end
    set_record(name, head)
    zadd(keys.parked, '0', head.record)
    local first = node.first
    if first == false or first and (first.record == head.record
        or fair.stands_before(head, first)) then
      node.first = head
    end
  end

  -- A head is not parked at a node any more. Other heads of its key are found when its stale record
  -- comes to the front.
  function fair.unpark(head, node, name)
    local of_key = head.node or node_of(head)
    local share = of_key.share
    local its = share and share.places[name]
    local is_last = not its or its.count <= 1
    if is_last and share then share.places[name] = nil elseif its then its.count = its.count - 1 end
    change(of_key)
    local first, record = node.first, nil
    if first and first[1] == head[1] then
      record, node.first = first.record, nil
      if not is_last then
        node.first = {first[1], first[2], first[3], first[4], rank = first.rank,
          place = first.place, record = record,
                      is_gone = true}
      end
    end
    if not is_last then return end
    if not record then
      set_record(name, head)
      record = head.record
    end
    zrem(keys.parked, record)
  end

  -- Replace the stale record at the front of a node by the current one of its key, if it has one.
  local function correct_first(node)
    local stale = node.first
    local name, of_key = node.name, key_node(stale[2])
    node.first = nil
    zrem(keys.parked, stale.record)
    local its = of_key.share and of_key.share.places[name]
    if not its then return end
    local text, path, id = string.match(first_of(flush(keys.parked), name .. '!' .. of_key.name)
      or '', '^%S+ (%S+) (%S+) (%S+)$')
    if not text then return end
    local head = turns.head(text, path, id)
    its.rank = head.rank or head[1]
    change(of_key)
    set_record(name, head)
    if head.record == stale.record then damaged('a head is parked twice') end
    zadd(keys.parked, '0', head.record)
  end

  -- Read the first record of a node.
  local function read_first(node)
    local found = first_of(flush(keys.parked), node.name)
    local tag, text, path, id = string.match(found or '', '^%S+ (%x+) (%S+) (%S+) (%S+)$')
    if not tag then
      node.first = false
      return
    end
    local head = head_to_serve(text, path, id)
    head.place, head.record = tag .. ' ' .. text:sub(1, 16), found
    head.is_gone = get('>' .. path) ~= node.name .. ' ' .. text .. ' ' .. id
    node.first = head
  end

  -- The first head at a node with records of keys.
  function fair.first(node)
    while true do
      if node.first == nil then read_first(node) end
      local head = node.first
      if not head then
        return nil
      elseif not head.is_gone and head.place == turn_of(head) then
        return head
      else
        correct_first(node)
      end
    end
  end
end)
