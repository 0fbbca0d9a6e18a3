-- rules/adaptive.lua: tiers whose values adapt, each node for itself. Not a script.
--
-- What is kept of a node in state, besides its record, whose value is the limit:
--   "%node" -> "used;record;window": when (us) something of it ended last, and rules/adaptation.lua
--   "&node" -> how it has moved, a line "at_us old new reason" for each change
-- and the fact .frozen, "tier=value ..." for tiers that are frozen as a whole; "-" is where they
-- start.
made_when_needed(adapting, function()
  local IDLE = 300000000       -- how long (us) a key that nobody uses is remembered
  local KEPT_OF_KEY = 20       -- how many changes: there may be very many keys
  local KEPT = 100

-- include rules/window.lua
-- include rules/adaptation.lua
  local rules_of = {}  -- by their texts

  local function parts_of(name)
    return string.match(get('%' .. name) or '', '^(%d+);([^;]*);(.*)$')
  end

  function adapting.is_frozen(name)
    local _, _, window = parts_of(name)
    return string.byte(window or '') == 2
  end

  -- The adaptation of a node; a new one begins then (us), or now.
  function adapting.read(node, begun)
    local text, _, record, window = adapting.rules[node.tier], parts_of(node.name)
    rules_of[text] = rules_of[text] or read_adaptive(text)
    local it = read_adaptation(rules_of[text], record, window, not record and begun or now_us,
      value_of(node))
    if not record and adapting.frozen[node.tier] then it.frozen = 1 end
    return it
  end

  -- Save it; its limit is the node's value from now on.
  function adapting.write(node, it)
    put('%' .. node.name, whole(now_us) .. ';' .. table.concat({adaptation_record(it)}, ';'))
    if it.limit ~= node.value then
      node.value = it.limit
      change(node)
      if node.waiting > 0 then touched[node.name] = node end
    end
    if #it.changes == 0 then return end
    local lines, most = {}, node.name:find(':.') and KEPT_OF_KEY or KEPT
    for each in string.gmatch(get('&' .. node.name) or '', '[^\n]+') do lines[#lines + 1] = each end
    for _, each in ipairs(it.changes) do
      lines[#lines + 1] = each
      local value, reason = each:match('^%S+ %S+ (%S+) (.*)$')
      if reason ~= 'frozen' then
        messages[#messages + 1] = 'adapted ' .. node.name .. ' ' .. value .. ' ' .. reason
      end
    end
    put('&' .. node.name, table.concat(lines, '\n', math.max(#lines - most + 1, 1)))
  end

  -- Note that an acquisition has ended, which may move its adaptive nodes. The sample is that of
  -- rules/window.lua.
  function adapting.count_end(path_nodes, claim, needs, sample)
    sample = sample or 'i-'
    local pause_us, paused = sample:match(' (%d+)p([%d.]*)$')
    for tier in string.gmatch(paused or '', '%d+') do
      local node = path_nodes[tonumber(tier) + 1]
      if node then pauses.begin(node.name:find(':.') and node.name or tier, tonumber(pause_us)) end
    end
    for _, node in ipairs(path_nodes) do
      if adapting.rules[node.tier] then
        local it = adapting.read(node, math.floor((tonumber(claim.granted) or now) * 1000000 + 0.5))
        note_end(it, now_us, held_for(sample, claim.granted, now_us), sample, need_of(node, needs))
        adapting.write(node, it)
        if node.held == 0 and node.name:find(':.') then
          call('ZADD', keys.cleanup, whole(now_us + IDLE), '%' .. node.name)
          fresh[keys.cleanup] = true
        end
      end
    end
  end

  -- Forget a key that nobody has used for a while, unless it is frozen.
  function adapting.forget_if_idle(name)
    local used = parts_of(name)
    local node = read_node(name)
    if used and node.held == 0 and node.waiting == 0 and not node.kept
        and not adapting.is_frozen(name) then
      if now_us - tonumber(used) < IDLE then return tonumber(used) + IDLE end
      put('%' .. name, false)
      put('&' .. name, false)
      node.value = nil
      change(node)
    end
  end
end)
