#!lua flags=allow-oom
-- KEYS: schedules, due, last starts, names of the tenant. ARGV: id, name.
-- Removes a schedule, and frees its name unless that is another one's by now. Returns 1.
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('HDEL', KEYS[3], ARGV[1])
if redis.call('HGET', KEYS[4], ARGV[2]) == ARGV[1] then redis.call('HDEL', KEYS[4], ARGV[2]) end
return 1
