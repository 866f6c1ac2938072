#!lua
-- KEYS: due. ARGV: member, the time that taking it has set, the time to look next (ms).
-- Returns 1 when that is now its time; 0 when somebody has asked for an earlier look meanwhile, or it is done.
local at = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not at or tonumber(at) ~= tonumber(ARGV[2]) then return 0 end
redis.call('ZADD', KEYS[1], ARGV[3], ARGV[1])
return 1
