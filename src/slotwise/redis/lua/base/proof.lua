-- base/proof.lua: how a message proves that a script wrote it. Not a script.
--
-- Anybody may publish on a channel. The owner in a claim begins with "!" and a secret
-- of the process that made it, so a script can prove to that process, and to nobody else, that it
-- has seen the claim. A listener learns nothing that would prove another message. The claims of
-- older clients have no secret: their messages go without a proof.
local function proved(message, owner)
  local secret = string.match(owner or '', '^!(%x+) ')
  if not secret then return message end
  return message .. ' ' .. redis.sha1hex(message .. ' ' .. secret)
end
