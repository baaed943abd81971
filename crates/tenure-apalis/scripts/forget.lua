-- Forgets a job if it is dead. Any other stays as it is: a worker that finds an id without its job ends.
--
-- KEYS  1 the ids of dead jobs   2 all jobs by id   3 what is known of the job
-- ARGV  1 the id of the job
-- Returns 1 if it was dead, otherwise 0
local dead = redis.call('SREM', KEYS[1], ARGV[1])
if dead == 1 then
  redis.call('HDEL', KEYS[2], ARGV[1])
  redis.call('DEL', KEYS[3])
end
return dead
