-- Counts a job once, however often it is done, unless a later holder's fencing token has been here. The check is that of
-- tenure::fence::REDIS, with more than one command under it: what a job does and that it is done are one step.
--
-- KEYS  1 the largest token   2 the ids of the jobs that were counted   3 how many were counted
-- ARGV  1 token   2 the id of the job
-- Returns 1 if it is counted now, 0 if it was before, -1 if the token is stale
local seen = redis.call('GET', KEYS[1])
if seen and tonumber(seen) > tonumber(ARGV[1]) then return -1 end
redis.call('SET', KEYS[1], ARGV[1])
local new = redis.call('SADD', KEYS[2], ARGV[2])
if new == 1 then redis.call('INCR', KEYS[3]) end
return new
