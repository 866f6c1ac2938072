#!lua flags=allow-oom
-- KEYS: rebalance targets. ARGV: ms for which they hold, then field, value …
-- Replaces all targets; without a field there are none from now on. Returns the number of fields.
redis.call('DEL', KEYS[1])
if #ARGV == 1 then return 0 end
redis.call('HSET', KEYS[1], unpack(ARGV, 2))
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return (#ARGV - 1) / 2
