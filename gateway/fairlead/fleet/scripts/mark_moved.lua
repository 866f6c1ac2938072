#!lua flags=allow-oom
-- KEYS: agent row. ARGV: sid.
-- Records that a rebalance moves the agent now. Returns 1 if the row is still of that session, otherwise 0.
if redis.call('HGET', KEYS[1], 'sid') ~= ARGV[1] then return 0 end
local t = redis.call('TIME')
redis.call('HSET', KEYS[1], 'moved', string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000)))
return 1
