#!lua flags=allow-oom
-- KEYS: due. ARGV: member, the time that taking it has set, the time of the next check (ms).
-- Returns 1 if the next check is now at that time; 0 if another time was scheduled meanwhile or the member is gone.
local at = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not at or tonumber(at) ~= tonumber(ARGV[2]) then return 0 end
redis.call('ZADD', KEYS[1], ARGV[3], ARGV[1])
return 1
