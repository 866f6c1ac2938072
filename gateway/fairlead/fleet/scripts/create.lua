#!lua
--include row
-- KEYS: cmd. ARGV: agent, expires ms, retention ms, valid until ms, then field, value … of the record.
-- Returns {'ok'} | {'exists'} | {'late'}. Creating twice is creating once.
if redis.call('EXISTS', KEYS[1]) == 1 then return {'exists'} end
local now = now_ms()
if now > tonumber(ARGV[4]) then return {'late'} end
redis.call('HSET', KEYS[1], 'agent', ARGV[1], 'expires', ARGV[2], 'retention', ARGV[3],
  'created', string.format('%.0f', now), 'open', 1, 'seq', 0, 'bytes', 0, 'n:queued', 1, unpack(ARGV, 5))
write_row(KEYS[1], ARGV[1], {state = 'queued', gen = 0, next = 0, attempt = 0, memory = ''})
redis.call('PEXPIRE', KEYS[1], math.max(tonumber(ARGV[2]) - now, 0) + tonumber(ARGV[3]) + 60000)
return {'ok'}
