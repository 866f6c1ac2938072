#!lua
-- KEYS: agent row. ARGV: gen ('' when the claim's answer never came), sid, close code, drained '0' | '1'.
-- Returns 1 when the lease was this session's own and is now given up.
local row = redis.call('HMGET', KEYS[1], 'gen', 'sid')
if ARGV[1] ~= '' and row[1] ~= ARGV[1] or row[2] ~= ARGV[2] then return 0 end
local t = redis.call('TIME')
redis.call('HSET', KEYS[1], 'lease', '', 'seen', string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000)),
  'close', ARGV[3], 'drained', ARGV[4])
return 1
