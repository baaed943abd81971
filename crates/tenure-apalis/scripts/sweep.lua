-- Forgets jobs that are done, and in time the worker. apalis keeps what it knows of them for ever.
--
-- KEYS  1 the ids of done jobs   2 all jobs by id   3 what is known of a job, with a colon and its id behind it
--       4 what is known of the worker
-- ARGV  1 how many jobs at most   2 seconds for which the worker is kept from now
-- Returns how many jobs
local done = redis.call('SPOP', KEYS[1], ARGV[1])
for _, id in ipairs(done) do
  redis.call('HDEL', KEYS[2], id)
  redis.call('DEL', KEYS[3] .. ':' .. id)
end
redis.call('EXPIRE', KEYS[4], ARGV[2])
return #done
