-- Starts a holder's lease anew; it never ends earlier for it, but by the first renewal after a hand-over.
--
-- KEYS  1 the lock   2 its queue   3 its places   4 the token counter of its slot
-- ARGV  1 owner   2 ttl_ms   3 guard_ms
-- Returns {'renewed'}   {'stopping', by}   {'not_held'}   {'format', number}
local value = redis.pcall('GET', KEYS[1])
local prefix = ARGV[1] .. ':1:'
if type(value) == 'string' and string.sub(value, 1, #prefix) == prefix then
  local token, ttl_ms, guard_ms, stop = string.match(value, '^(%d+):(%d+):(%d+)(.*)$', #prefix + 1)
  if stop and stop ~= '' then return {'stopping', string.sub(stop, 2)} end
  if token then
    -- A renewal that was stuck on its way must not cut a lease that a later one has set. Only the first one after a
    -- hand-over (ttl_ms of 0) may.
    if ttl_ms == '0' or ARGV[2] + ARGV[3] > redis.call('PTTL', KEYS[1]) then
      -- PEXPIRE is never refused for lack of memory, and what follows a first write isn't either.
      redis.call('PEXPIRE', KEYS[1], ARGV[2] + ARGV[3])
      if ttl_ms ~= ARGV[2] or guard_ms ~= ARGV[3] then
        redis.call('SET', KEYS[1], prefix .. token .. ':' .. ARGV[2] .. ':' .. ARGV[3], 'KEEPTTL')
      end
    end
    return {'renewed'}
  end
end

local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
-- include queue.lua

look()
if odd then return {'format', odd} end
if free_in_ms == -2 and redis.call('EXISTS', QUEUE) == 1 then hand_over() end
return {'not_held'}
