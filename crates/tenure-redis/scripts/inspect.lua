-- Looks at a lock, for people. Changes nothing.
--
-- KEYS  1 the lock   2 its queue   3 its places   4 the token counter of its slot
-- ARGV  1 how many waiters at most
-- Returns {now_us, type, free_in_ms, value, waiting, owners, places}
--         type and free_in_ms: as TYPE and PTTL answer; value: of a string, its first 300 bytes;
--         waiting: how many wait in all; owners, places: of the first waiters, in order
local time = redis.call('TIME')
local kind = redis.call('TYPE', KEYS[1]).ok
local value = ''
if kind == 'string' then value = redis.call('GETRANGE', KEYS[1], 0, 299) end
local owners = redis.call('ZRANGE', KEYS[2], 0, ARGV[1] - 1)
local places = {}
for i = 1, #owners do places[i] = redis.call('HGET', KEYS[3], owners[i]) or '' end
return {
  time[1] * 1000000 + time[2], kind, redis.call('PTTL', KEYS[1]), value, redis.call('ZCARD', KEYS[2]),
  owners, places
}
