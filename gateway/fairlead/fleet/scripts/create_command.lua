#!lua
--include record
-- KEYS: cmd, outcome. ARGV: agent, expires ms, retention ms, retry, retain, until when an Idempotency-Key is bound to
-- the command ms (0 if it has none), valid until ms, follower, about, payload.
-- Returns {'ok'} | {'exists'} | {'late'}. Creating a command twice creates it once; with an Idempotency-Key also if the
-- first record is already gone.
local now = now_ms()
if now > tonumber(ARGV[7]) then return {'late'} end
local row = pack_row({state = 'queued', gen = 0, next = 0, attempt = 0, memory = ''})
local remembered = tonumber(ARGV[6])
if redis.call('EXISTS', KEYS[1]) == 1 then return {'exists'} end
if remembered > 0 and redis.call('EXISTS', KEYS[2]) == 1 then return {'exists'} end
redis.call('HSET', KEYS[1], 't:' .. ARGV[1], row, 'sum', pack_sum({open = 1, seq = 0, bytes = 0, truncated = '0'}),
  'terms', table.concat({ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]}, '|'), 'w', ARGV[8], 'about', ARGV[9],
  'payload', ARGV[10])
-- A record that is never ended also lives as long as its Idempotency-Key; otherwise a repeated post would create it a
-- second time.
local life = math.max(math.max(tonumber(ARGV[2]) - now, 0) + tonumber(ARGV[3]) + 60000, remembered - now)
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', life))
return {'ok'}
