#!lua
-- KEYS: service tokens. ARGV: id, new revision. Returns 1, or 0 if there is no such token.
if redis.call('HDEL', KEYS[1], 'token:' .. ARGV[1]) == 0 then return 0 end
redis.call('HDEL', KEYS[1], 'used:' .. ARGV[1])
redis.call('HSET', KEYS[1], 'revision', ARGV[2])
return 1
