#!lua flags=allow-oom
-- KEYS: agent row. ARGV: the lease of a node that has died. Sets the time when the agent was last seen to now, because
-- the actual time is unknown.
-- Returns 1 if the row still has that lease, otherwise 0.
if redis.call('HGET', KEYS[1], 'lease') ~= ARGV[1] then return 0 end
local t = redis.call('TIME')
redis.call('HSET', KEYS[1], 'seen', string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000)))
return 1
