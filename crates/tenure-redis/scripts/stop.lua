-- Asks a holder to stop: its lease is not renewed any more.
--
-- KEYS  1 the lock   2 its queue   3 its places   4 the token counter of its slot
-- ARGV  1 holder   2 by: who asks, without control characters
-- Returns {'told', reached (1 or 0)}   {'not_held'}   {'format', number}
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
-- include queue.lua

look()
if odd then return {'format', odd} end
local prefix = '9999999999999-' .. ARGV[1] .. '-'
if string.sub(value, 1, #prefix) == prefix then
  local owner, lease = string.match(value, '^([^:]+)(:1:%d+:%d+:%d+)')
  if owner then
    local reached = reachable(owner)
    redis.call('SET', LOCK, owner .. lease .. ':' .. ARGV[2], 'KEEPTTL')
    tell(owner, 'stop', ARGV[2])
    return {'told', reached and 1 or 0}
  end
end
if free_in_ms == -2 and redis.call('EXISTS', QUEUE) == 1 then hand_over() end
return {'not_held'}
