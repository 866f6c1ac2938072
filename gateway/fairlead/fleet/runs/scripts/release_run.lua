#!lua flags=allow-oom
-- KEYS: run. ARGV: gen of the owner.
-- Ends the ownership now, if it is still that of `gen`. Returns 1 if it was.
if redis.call('HGET', KEYS[1], 'gen') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'until', 0)
return 1
