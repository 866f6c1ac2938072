#!lua
-- KEYS: agent row. ARGV: the lease of a node that has died. The agent was seen until now, for want of a better time.
-- Returns 1 when the row still has that lease.
if redis.call('HGET', KEYS[1], 'lease') ~= ARGV[1] then return 0 end
local t = redis.call('TIME')
redis.call('HSET', KEYS[1], 'seen', string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000)))
return 1
