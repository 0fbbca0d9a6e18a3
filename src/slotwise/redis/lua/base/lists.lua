-- base/lists.lua: how the server keeps small sets. Not a script. Fast halves include it: every function costs each call.
--
-- It keeps up to 128 short members as a list, and searches all of it for each command. A member of more than 64 bytes ends
-- that, and what was changed stays so until the set is empty.
local MANY = 32  -- from this many members on, a set should not be a list
local LONG = '-----------------------------------------------------------------'  -- a member of 65 bytes

-- Add members with their scores to a set that has `before`; if they become many, the set stops being a list.
local function add_members(key, before, scores_and_members)
  local become_many = before < MANY and before + #scores_and_members / 2 >= MANY
  if become_many then redis.call('ZADD', key, '0', LONG) end
  redis.call('ZADD', key, unpack(scores_and_members))
  if become_many then redis.call('ZREM', key, LONG) end
end
