#!lua flags=allow-oom
-- KEYS: columns. ARGV: which columns have been built.
-- Notes that all rows of the shard are in the columns. Returns 1, or 0 if these columns are gone.
if redis.call('HGET', KEYS[1], 'gen') ~= ARGV[1] then return 0 end
local t = redis.call('TIME')
redis.call('HSET', KEYS[1], 'ready', string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000)))
return 1
