#!lua flags=allow-oom
-- KEYS: node row. ARGV: epoch, '1' to begin a registration, ttl ms, the epoch that a new registration may replace,
-- then field, value …
-- Returns {1 if this registration continues or has begun, now ms}. 0: the row is gone or belongs to another
-- registration; when beginning one, the row belongs to a registration other than the one that it may replace.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local epoch = redis.call('HGET', KEYS[1], 'epoch')
if ARGV[2] ~= '1' and epoch ~= ARGV[1] then return {0, now} end
if ARGV[2] == '1' then
  if epoch and epoch ~= ARGV[1] and epoch ~= ARGV[4] then return {0, now} end
  redis.call('HSET', KEYS[1], 'began', string.format('%.0f', now))
end
redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'at', string.format('%.0f', now), unpack(ARGV, 5))
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {1, now}
