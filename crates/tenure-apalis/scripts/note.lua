-- Notes that a job is tried for this time, if it is still there. Otherwise nothing may be left of it that looks like one.
--
-- KEYS  1 all jobs by id   2 what is known of the job
-- ARGV  1 the id of the job   2 which try it is
-- Returns 1 if it is there, otherwise 0
local there = redis.call('HEXISTS', KEYS[1], ARGV[1])
if there == 1 then redis.call('HSET', KEYS[2], 'attempts', ARGV[2]) end
return there
