-- Gives a lock back, or a place in its queue.
--
-- KEYS  1 the lock   2 its queue   3 its places   4 the token counter of its slot
-- ARGV  1 owner
-- Returns 1: released, and nobody waited
--         {'released'}   {'not_held'}   {'format', number}
local value = redis.pcall('GET', KEYS[1])
local prefix = ARGV[1] .. ':1:'
local held = type(value) == 'string' and string.sub(value, 1, #prefix) == prefix
local waited_for = redis.call('EXISTS', KEYS[2]) == 1
if held and not waited_for then
  redis.call('DEL', KEYS[1])
  return 1
end

local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
-- include queue.lua

if held then
  hand_over()
  return {'released'}
end
look()
if odd then return {'format', odd} end
if not waited_for then return {'not_held'} end
local reply = 'not_held'
if redis.call('ZSCORE', QUEUE, ARGV[1]) then
  reply = 'released'
  local first = next_live(0, ARGV[1])
  leave(ARGV[1])
  if first == ARGV[1] then tell_head() end
end
if free_in_ms == -2 then hand_over() end
return {reply}
