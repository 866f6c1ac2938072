#!lua
-- KEYS: schedules, due. ARGV: id, blob, when it is due first ms, limit of all schedules.
-- Returns 1, or 0 if there are as many as there may be.
if redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[4]) then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[2], ARGV[3], ARGV[1])
return 1
