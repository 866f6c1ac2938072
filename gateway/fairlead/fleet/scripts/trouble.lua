#!lua
-- KEYS: agent row. ARGV: what went wrong, as text. The last of it is kept, with its time, for whoever asks why.
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local t = redis.call('TIME')
redis.call('HSET', KEYS[1], 'trouble', string.format('%.0f ', t[1] * 1000 + math.floor(t[2] / 1000)) .. ARGV[1])
return 1
