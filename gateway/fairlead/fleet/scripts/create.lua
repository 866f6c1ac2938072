#!lua
--include row
-- KEYS: cmd. ARGV: agent, expires ms, retention ms, valid until ms, then field, value … of the record.
-- Returns {'ok'} | {'exists'} | {'late'}. Creating twice is creating once.
local now = now_ms()
if now > tonumber(ARGV[4]) then return {'late'} end
if redis.call('HSETNX', KEYS[1], 'agent', ARGV[1]) == 0 then return {'exists'} end
redis.call('HSET', KEYS[1], 'expires', ARGV[2], 'retention', ARGV[3], 'created', string.format('%.0f', now),
  'open', 1, 'seq', 0, 'bytes', 0,
  't:' .. ARGV[1], pack_row({state = 'queued', gen = 0, next = 0, attempt = 0, memory = ''}), unpack(ARGV, 5))
redis.call('PEXPIRE', KEYS[1], math.max(tonumber(ARGV[2]) - now, 0) + tonumber(ARGV[3]) + 60000)
return {'ok'}
