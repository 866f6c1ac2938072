#!lua flags=allow-oom
-- KEYS: any key of the schema. ARGV: the type that its values have.
-- Removes a value of another type. Returns that type, or false when there is none.
local found = redis.call('TYPE', KEYS[1]).ok
if found == 'none' or found == ARGV[1] then return false end
redis.call('UNLINK', KEYS[1])
return found
