#!lua flags=allow-oom
-- KEYS: enrolment token. ARGV: agent, thumbprint, number of uses, enrolments a minute or 0 for any number.
-- Counts one use for each agent and key; the same agent with the same key may repeat its enrolment.
-- Returns {1}, or {0} if the token has no use left, or {-1} if there is no such token, or {-2, ms until the next
-- enrolment} if its rate is used up.
if redis.call('HEXISTS', KEYS[1], 'token') == 0 then return {-1} end
local field = 'agent:' .. ARGV[1] .. ' ' .. ARGV[2]
if redis.call('HEXISTS', KEYS[1], field) == 1 then return {1} end
-- The token itself is one field of the hash, and its bucket another.
local others = 1 + redis.call('HEXISTS', KEYS[1], 'bucket')
if redis.call('HLEN', KEYS[1]) - others >= tonumber(ARGV[3]) then return {0} end
local rate = tonumber(ARGV[4])
if rate > 0 then
  -- A token bucket (RFC 2697 has one with other words) that holds as many as one minute gives.
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local held, at = string.match(redis.call('HGET', KEYS[1], 'bucket') or '', '^(%S+) (%S+)$')
  held = held and math.min(rate, held + math.max(now - at, 0) * rate / 60000) or rate
  if held < 1 then return {-2, math.ceil((1 - held) * 60000 / rate)} end
  redis.call('HSET', KEYS[1], 'bucket', string.format('%.6f %.0f', held - 1, now))
end
redis.call('HSET', KEYS[1], field, '1')
return {1}
