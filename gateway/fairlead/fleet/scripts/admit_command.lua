#!lua flags=allow-oom
-- KEYS: tenant's open commands, tenant's use. ARGV: command, when it ends at the latest ms, most open commands or 0,
-- commands a second or 0.
-- Counts a command of a tenant that is about to be accepted. The same one may be counted again.
-- Returns {'ok'} | {'open', how many are open} | {'rate', ms until the next}.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local most, rate = tonumber(ARGV[3]), tonumber(ARGV[4])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now) -- what nobody has removed ended at its deadline
if most > 0 and not redis.call('ZSCORE', KEYS[1], ARGV[1]) then
  local count = redis.call('ZCARD', KEYS[1])
  if count >= most then return {'open', count} end
end
if rate > 0 then
  -- A token bucket that holds as many as one second gives.
  local held, at = string.match(redis.call('HGET', KEYS[2], 'bucket') or '', '^(%S+) (%S+)$')
  held = held and math.min(rate, held + math.max(now - at, 0) * rate / 1000) or rate
  if held < 1 then return {'rate', math.ceil((1 - held) * 1000 / rate)} end
  redis.call('HSET', KEYS[2], 'bucket', string.format('%.6f %.0f', held - 1, now))
end
if most > 0 then redis.call('ZADD', KEYS[1], ARGV[2], ARGV[1]) end
return {'ok'}
