#!lua
-- KEYS: schedules, due, names of the tenant. ARGV: id, blob, when it is due first ms, limit of all schedules, limit of
-- the tenant, name.
-- Returns {'ok'} | {'full'} | {'tenant'} if there are as many as there, or of the tenant, may be | {'name', id of the
-- schedule that has the name}.
local taken = redis.call('HGET', KEYS[3], ARGV[6])
if taken and redis.call('HEXISTS', KEYS[1], taken) == 1 then return {'name', taken} end
if redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[4]) then return {'full'} end
if redis.call('HLEN', KEYS[3]) >= tonumber(ARGV[5]) then return {'tenant'} end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('HSET', KEYS[3], ARGV[6], ARGV[1])
redis.call('ZADD', KEYS[2], ARGV[3], ARGV[1])
return {'ok'}
