#!lua flags=allow-oom
-- KEYS: idem. ARGV: the binding to remove. Returns 1 if the key had this binding; any other belongs to another command.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
