#!lua
--include row
-- KEYS: cmd. ARGV: agent, expires ms, retention ms, retry, retain, valid until ms, follower, about, payload.
-- Returns {'ok'} | {'exists'} | {'late'}. Creating twice is creating once.
local now = now_ms()
if now > tonumber(ARGV[6]) then return {'late'} end
local row = pack_row({state = 'queued', gen = 0, next = 0, attempt = 0, memory = ''})
if redis.call('EXISTS', KEYS[1]) == 1 then return {'exists'} end
redis.call('HSET', KEYS[1], 't:' .. ARGV[1], row, 'sum', pack_sum({open = 1, seq = 0, bytes = 0, truncated = '0'}),
  'terms', table.concat({ARGV[2], ARGV[3], ARGV[4], ARGV[5]}, '|'), 'w', ARGV[7], 'about', ARGV[8], 'payload', ARGV[9])
redis.call('PEXPIRE', KEYS[1], math.max(tonumber(ARGV[2]) - now, 0) + tonumber(ARGV[3]) + 60000)
return {'ok'}
