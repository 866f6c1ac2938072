#!lua
-- KEYS: agent row. ARGV: sid, close code, drained '0' | '1', reason of the close.
-- Returns 1 if the lease belonged to this session and is now released. The sid alone decides: it is random, and every
-- claim writes the sid of its own session, so a newer owner is never released.
if redis.call('HGET', KEYS[1], 'sid') ~= ARGV[1] then return 0 end
local t = redis.call('TIME')
redis.call('HSET', KEYS[1], 'lease', '', 'seen', string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000)),
  'close', ARGV[2], 'drained', ARGV[3], 'reason', ARGV[4])
return 1
