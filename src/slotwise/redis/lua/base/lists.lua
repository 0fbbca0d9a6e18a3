-- base/lists.lua: how the server keeps small sets. Not a script. Fast halves include it: every function costs each call.
--
-- It keeps up to 128 short members as a list, and searches all of it for each command: with 100 holders that costs more
-- than anything else of a grant. A member of more than 64 bytes ends that, and what was changed stays so.
local MANY = 32  -- from so many members on, a set had better not be a list

local function unlist(key)
  local long = string.rep('-', 65)
  redis.call('ZADD', key, '0', long)
  redis.call('ZREM', key, long)
end
