-- Asks for a lock, or for a place in its queue.
--
-- KEYS  1 the lock   2 its queue   3 its places   4 the token counter of its slot
-- ARGV  1 owner   2 ttl_ms   3 guard_ms   4 place_ms (0: don't queue)   5 attempt
--       6 late_us: from this microsecond of the server's clock on, do nothing (16 digits)   7 ttl_ms + guard_ms
-- Returns token                               granted; the token is the server's clock in microseconds
--         {'granted', now_us, token}          granted; the token is ahead of the clock, or was given before
--         {'queued', now_us, head (1 or 0), free_in_ms, value}   free_in_ms and value of the lock's key: PTTL's
--         {'busy', now_us, 0, free_in_ms, value}                 answer and the text; '' if it can't be Tenure's
--         {'full', now_us}   {'stale', now_us}   {'format', number}
--
-- The common case is a free lock for which nobody waits: four calls, and no number is made of a text or a text of a
-- number, which costs as much as a call. Until the year 2286 the clock has 16 digits, and compares as text.
local time = redis.call('TIME')
local now = time[1] .. string.sub('00000', #time[2]) .. time[2]
if now >= ARGV[6] then return {'stale', tonumber(now)} end

if redis.call('EXISTS', KEYS[1], KEYS[2]) == 0 then
  local last = redis.call('GETSET', KEYS[4], now)
  if not last or (#last == 16 and last < now) then
    redis.call('SET', KEYS[1], ARGV[1] .. ':1:' .. now .. ':' .. ARGV[2] .. ':' .. ARGV[3], 'PX', ARGV[7])
    return now
  end
  redis.call('SET', KEYS[4], last)
end

local now_us = tonumber(now)
-- include queue.lua

local owner, ttl_ms, guard_ms, place_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
look()
if odd then return {'format', odd} end

local token, old_ttl_ms, _, stop = mine(owner)
if token then
  -- The lock may have been handed over meanwhile, and its owner may believe in all of that lease: only ever longer.
  if ttl_ms + guard_ms > free_in_ms then
    -- PEXPIRE is never refused for lack of memory, and what follows a first write isn't either.
    redis.call('PEXPIRE', LOCK, ttl_ms + guard_ms)
    if old_ttl_ms == '0' then ttl_ms = '0' end
    local new = table.concat({owner, '1', token, ttl_ms, guard_ms}, ':') .. stop
    if new ~= value then redis.call('SET', LOCK, new, 'KEEPTTL') end
  end
  return {'granted', now_us, tonumber(token)}
end
if free_in_ms == -2 then
  if hand_over(owner) then return {'granted', now_us, hold(owner, ttl_ms, guard_ms, ttl_ms)} end
  if odd then return {'format', odd} end
  look()
end

local has_place = redis.call('ZSCORE', QUEUE, owner)
if place_ms == 0 then
  if has_place then leave(owner) end
  return {'busy', now_us, 0, free_in_ms, value}
end
if not has_place then
  if redis.call('ZCARD', QUEUE) >= WAITERS_MAX then return {'full', now_us} end
  local last = redis.call('ZREVRANGE', QUEUE, 0, 0, 'WITHSCORES')[2] or 0
  redis.call('ZADD', QUEUE, last + 1, owner)
end
redis.call('HSET', PLACES, owner, string.format('1:%.0f:%s:%s', now_ms + place_ms, ARGV[5], guard_ms))
-- A queue whose waiters are all dead goes away by itself.
local keep_ms = place_ms + SLACK_MS
if redis.call('PTTL', QUEUE) < keep_ms then
  redis.call('PEXPIRE', QUEUE, keep_ms)
  redis.call('PEXPIRE', PLACES, keep_ms)
end
local head = next_live(0) == owner
return {'queued', now_us, head and 1 or 0, free_in_ms, value}
