-- Carries several requests of the common kind in one call: asks for free locks for which nobody waits, and releases of
-- locks for which nobody waits. Whatever isn't that simple is left alone and answered 0: its own script carries it.
--
-- KEYS  of each ask      the lock   its queue   the token counter of its slot
--       of each release  the lock   its queue
-- ARGV  of each ask      'ask'      owner   late_us (16 digits)   ':' ttl_ms ':' guard_ms   ttl_ms + guard_ms
--       of each release  'release'  owner
-- Returns for each, in order: token (granted; it is the server's clock in microseconds), 1 (released) or 0.
--         Any other word ends it with an error; what came before has run.
local time = redis.call('TIME')
local now = time[1] .. string.sub('00000', #time[2]) .. time[2]
local replies = {}
local key, arg = 1, 1
while ARGV[arg] do
  local reply, owner = 0, ARGV[arg + 1]
  if ARGV[arg] == 'release' then
    local value = redis.pcall('GET', KEYS[key])
    local prefix = owner .. ':1:'
    if type(value) == 'string' and string.sub(value, 1, #prefix) == prefix
      and redis.call('EXISTS', KEYS[key + 1]) == 0 then
      redis.call('DEL', KEYS[key])
      reply = 1
    end
    key, arg = key + 2, arg + 2
  elseif ARGV[arg] == 'ask' then
    if now < ARGV[arg + 2] and redis.call('EXISTS', KEYS[key], KEYS[key + 1]) == 0 then
      local last = redis.call('GETSET', KEYS[key + 2], now)
      if not last or (#last == 16 and last < now) then
        redis.call('SET', KEYS[key], owner .. ':1:' .. now .. ARGV[arg + 3], 'PX', ARGV[arg + 4])
        reply = now
      else
        redis.call('SET', KEYS[key + 2], last)
      end
    end
    key, arg = key + 3, arg + 5
  else
    return redis.error_reply('ERR together knows ask and release')
  end
  replies[#replies + 1] = reply
end
return replies
