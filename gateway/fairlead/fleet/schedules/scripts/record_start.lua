#!lua flags=allow-oom
-- KEYS: due, last starts. ARGV: id, when it was due ms, when it is due next ms, blob of this start.
-- Notes a start, unless another node has, or the schedule was removed. Returns 1 if this call did.
local due = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not due or tonumber(due) ~= tonumber(ARGV[2]) then return 0 end
redis.call('ZADD', KEYS[1], ARGV[3], ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[4])
return 1
