-- What the scripts share. Included where a script has found that it has more to do than the common case; needs
-- `now_us`, the server's clock in microseconds.
local LOCK, QUEUE, PLACES, COUNTER = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local WAITERS_MAX, PASSED_OVER_MAX, LOOKED_AT_MAX, SLACK_MS = 10000, 8, 128, 10000
local VALUE_BYTES_MAX = 300 -- no value of Tenure's is as long
local now_ms = math.floor(now_us / 1000)

-- Set where a value or a place was written in a format that this script does not know: its number.
local odd

-- Reads the lock's key. value: its text, '' if it can't be Tenure's (no string, too long). free_in_ms: as PTTL
-- answers, -2 nothing there, -1 no end.
local value, free_in_ms
local function look()
  value = redis.pcall('GETRANGE', LOCK, 0, VALUE_BYTES_MAX - 1)
  if type(value) == 'table' then
    -- Another type. Any other error is raised as it was.
    if string.sub(value.err, 1, 9) ~= 'WRONGTYPE' then redis.call('GETRANGE', LOCK, 0, VALUE_BYTES_MAX - 1) end
    value = ''
  elseif #value == VALUE_BYTES_MAX then
    value = ''
  end
  free_in_ms = redis.call('PTTL', LOCK)
  local process, secret, format =
    string.match(value, '^9999999999999%-(%w+)%.%d+%-(%w+):(%d+):')
  if format and format ~= '1' and #process == 13 and #secret == 26 then odd = format end
end

-- token, ttl_ms, guard_ms, stop of the hold under the lock's key if its owner is this one, as texts. stop is '' or
-- ':' and who asked. Owners are compared byte by byte: nothing in an owner can act as a pattern.
local function mine(owner)
  local prefix = owner .. ':1:'
  if string.sub(value, 1, #prefix) ~= prefix then return nil end
  return string.match(value, '^(%d+):(%d+):(%d+)(.*)$', #prefix + 1)
end

-- Writes a new hold under the lock's key; answers its token. ttl_ms of 0: the lock was handed over, its lease is what
-- is left of a place, and no renewal has come yet.
local function hold(owner, ttl_ms, guard_ms, lease_ms)
  local token = now_us
  local last = tonumber(redis.call('GETSET', COUNTER, token))
  if last and last >= token then
    token = last + 1
    redis.call('SET', COUNTER, token)
  end
  redis.call('SET', LOCK, string.format('%s:1:%.0f:%s:%s', owner, token, ttl_ms, guard_ms),
    'PX', math.max(1, lease_ms + guard_ms))
  return token
end

-- Takes a place away.
local function leave(owner)
  redis.call('ZREM', QUEUE, owner)
  redis.call('HDEL', PLACES, owner)
end

-- The first live place after `skip` live ones: owner, until_ms, attempt, guard_ms. Dead ones on the way are taken
-- away. Whoever asks just now is alive.
local function next_live(skip, asker)
  for _ = 1, LOOKED_AT_MAX do
    local owner = redis.call('ZRANGE', QUEUE, skip, skip)[1]
    if not owner then return nil end
    local format, rest = string.match(redis.call('HGET', PLACES, owner) or '', '^(%d+):(.*)$')
    if format and format ~= '1' then
      odd = format
      return nil
    end
    local until_ms, attempt, guard_ms = string.match(rest or '', '^(%d+):(%d+):(%d+)$')
    if owner == asker or (until_ms and now_ms <= tonumber(until_ms)) then
      return owner, until_ms, attempt, guard_ms
    end
    leave(owner)
  end
  return nil
end

-- The channel of the process of an owner.
local function channel(owner)
  return 'tenure:m:' .. string.sub(owner, 15, 27)
end

-- Does that process listen? Asked before anything is written for it, so that the message itself comes last. A
-- listener by pattern does not count: it is somebody who watches, not the waiter.
local function reachable(owner)
  local count = redis.pcall('PUBSUB', 'NUMSUB', channel(owner))
  return count[2] ~= nil and count[2] > 0
end

-- Sends a message. It may be lost (and is, where the user has no right to the channel): nothing depends on it.
local function tell(owner, ...)
  redis.pcall('PUBLISH', channel(owner), table.concat({'1', LOCK, owner, ...}, '\n'))
end

-- Tells the first in line who can be told that it watches the holder now.
local function tell_head()
  look()
  if free_in_ms == -2 then return end
  local holder, token, guard_ms = string.match(value, '^9999999999999%-(%w+%.%d+)%-%w+:1:(%d+):%d+:(%d+)')
  local skip = 0
  for _ = 1, PASSED_OVER_MAX do
    local owner = next_live(skip)
    if not owner then return end
    if reachable(owner) then
      tell(owner, 'head', free_in_ms, holder or '', token or '', guard_ms or '')
      return
    end
    skip = skip + 1
  end
end

-- Gives a free lock to the first in line who can be told. True: that is the asker, who is told by the reply.
local function hand_over(asker)
  -- Nothing is there. But a write that is never refused for lack of memory makes the ones that follow pass, too.
  redis.call('DEL', LOCK)
  local skip = 0
  for _ = 1, PASSED_OVER_MAX do
    local owner, until_ms, attempt, guard_ms = next_live(skip, asker)
    if not owner then return asker ~= nil and odd == nil and redis.call('ZCARD', QUEUE) <= skip end
    if owner == asker then
      leave(owner)
      return true
    end
    if reachable(owner) then
      leave(owner)
      local token = hold(owner, '0', guard_ms, until_ms - now_ms)
      tell(owner, 'granted', string.format('%.0f', token), attempt)
      tell_head()
      return false
    end
    skip = skip + 1
  end
  -- None of those in front can be told, and there may be many more: whoever is here gets it, rather than nobody.
  if asker then leave(asker) end
  return asker ~= nil
end
