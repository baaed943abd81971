-- Drops the ids of jobs that are not there any more: a worker of apalis that fetches one ends, and the next one after it.
--
-- KEYS  1 the ids that are due   2 those that are to be due   3 the workers   4 all jobs by id
-- ARGV  1 what stands before the name of a worker in the key of the ids that it fetched
-- Returns how many ids
local lost = 0
local function drop(ids, command, ...)
  for _, id in ipairs(ids) do
    if redis.call('HEXISTS', KEYS[4], id) == 0 then
      local words = {command, ...}
      words[#words + 1] = id
      lost = lost + redis.call(unpack(words))
    end
  end
end

drop(redis.call('LRANGE', KEYS[1], 0, -1), 'LREM', KEYS[1], 1)
drop(redis.call('ZRANGE', KEYS[2], 0, -1), 'ZREM', KEYS[2])
for _, worker in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1)) do
  drop(redis.call('SMEMBERS', ARGV[1] .. worker), 'SREM', ARGV[1] .. worker)
end
return lost
