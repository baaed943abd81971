-- Runs one command, unless a later holder's fencing token has been here; remembers the token.
--
-- KEYS  1 where the largest token is kept   2.. the keys of the command
-- ARGV  1 token   2.. the command and its arguments; none: the token is installed, and that is all
-- Returns {'ok', what the command answered}   {'stale', the larger token}
--
-- A token is a count of microseconds since 1970. Numbers here are exact up to 2^53 of them, which is the year 2255; what
-- is larger, or no number, is refused. A command that fails leaves the token installed.
local function exact(text, what)
  local number = string.match(text, '^%d+$') and tonumber(text)
  if not number or number > 9007199254740992 then error(what .. ' is no fencing token: ' .. text) end
  return number
end

local token = exact(ARGV[1], 'ARGV[1]')
local seen = redis.call('GET', KEYS[1])
if seen and exact(seen, KEYS[1]) > token then return {'stale', seen} end
redis.call('SET', KEYS[1], ARGV[1])
if #ARGV == 1 then return {'ok'} end
return {'ok', redis.call(unpack(ARGV, 2))}
