-- semaphore/end_blocking_call.lua: end the blocking call of this process, which then waits on more lists.
-- KEYS  1 a list that only this process waits on
-- Returns 1.
redis.call('RPUSH', KEYS[1], '1')
redis.call('PEXPIRE', KEYS[1], 10000)
return 1
