#!lua flags=allow-oom
-- KEYS: moves. ARGV: wanted, moves a second while no operator sets the rate, '1' to overdraw, seconds of debt at most.
-- Of an operator that is gone, the hash still has the most moves a second that it allowed, which remain the limit.
-- Returns {granted, the rate, ms until the first of the granted moves is due; without any, until one can be granted}.
-- A token bucket that holds the moves of one second, at least one. Moves from a full bucket are due now; moves from any
-- other bucket are due when it would be full again. So the moves of all nodes together are spaced by 1 / rate, and a
-- bucket that has filled up never lets two seconds' worth go in one second.
-- The debt is at most what the present rate repays in the seconds given, so nobody waits for longer than that.
-- A value in the hash that is not a number counts as absent: whoever can write there may slow moves down, but cannot
-- stop a node.
local function number(value, default)
  local n = tonumber(value or '')
  return n and n == n and n or default
end

local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local row = redis.call('HMGET', KEYS[1], 'rate', 'until', 'tokens', 'at', 'most')
local own = math.min(tonumber(ARGV[2]), number(row[5], tonumber(ARGV[2])))
local rate = math.max(0, number(row[2], 0) > now and number(row[1], own) or own)
local burst = math.max(1, rate)
local debt = rate * tonumber(ARGV[4])
local tokens = math.min(burst, number(row[3], burst) + math.max(0, now - number(row[4], now)) * rate / 1000)
if rate > 0 then tokens = math.max(-debt, tokens) end
local wanted = tonumber(ARGV[1])
local granted = math.min(wanted, math.max(0, math.floor(tokens + 1e-6)))
local missing = burst - tokens
if ARGV[3] == '1' then
  granted = wanted
  tokens = math.max(math.min(tokens, -debt), tokens - wanted)
else
  if rate == 0 then granted = 0 end
  if granted == 0 then missing = 1 - tokens end
  tokens = tokens - granted
end
redis.call('HSET', KEYS[1], 'tokens', string.format('%.6f', tokens), 'at', string.format('%.0f', now))
local wait = rate > 0 and math.min(3600000, math.max(0, missing) * 1000 / rate) or 3600000
return {granted, string.format('%.6f', rate), string.format('%.0f', wait)}
