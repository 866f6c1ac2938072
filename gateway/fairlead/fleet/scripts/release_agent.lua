#!lua flags=allow-oom
-- KEYS: agent row. ARGV: sid, close code, drained '0' | '1', reason of the close.
-- Returns 1 if the lease belonged to this session and is now released. The sid alone decides: it is random, and every
-- claim writes the sid of its own session, so a newer owner is never released. If the agent has a newer link, the end
-- of the link just before it is recorded all the same.
local row = redis.call('HMGET', KEYS[1], 'sid', 'unrecorded')
local own = row[1] == ARGV[1]
if not own and (not row[2] or string.match(row[2], '[^ ]*$') ~= ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'close', ARGV[2], 'reason', ARGV[4])
if row[2] then redis.call('HDEL', KEYS[1], 'unrecorded') end
if not own then return 0 end
local t = redis.call('TIME')
redis.call('HSET', KEYS[1], 'lease', '', 'seen', string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000)),
  'drained', ARGV[3])
return 1
