-- semaphore/oldest_holders.lua: who has held longest, for the message to one that got nothing. Not a script.
local NAMED = 3      -- how many holders a message names
local SEARCHED = 32  -- among how many slots: holders are in no order, and somebody may ask again and again

-- For each of the longest holders a text "s owner": for how long it has held, and the owner in its claim. None if there are
-- too many: the oldest of some is not the oldest. Clients that know no claims are left out.
local function oldest_holders(held)
  if held == 0 or held > SEARCHED then return {} end
  local tokens, text_of, texts = {}, {}, {}
  for _, text in ipairs(redis.call('HMGET', state, unpack(redis.call('ZRANGE', main, 0, -1)))) do
    local token = tonumber(string.match(text or '', '^%S+ %S+ %S+ %S+ %S+ (%d+)'))
    if token then
      tokens[#tokens + 1], text_of[token] = token, text
    end
  end
  table.sort(tokens)
  for i = 1, math.min(#tokens, NAMED) do
    local text = text_of[tokens[i]]
    local granted = tonumber(string.match(text, '^%S+ %S+ %S+ (%S+)')) or now
    texts[i] = whole(math.max(now - granted, 0)) .. ' ' .. (owner_in(text) or '')
  end
  return texts
end
