#!lua flags=allow-oom
-- KEYS: bound key of an agent. ARGV: thumbprint.
-- Refuses this key for the agent's id until it is released, also if the key is about to be bound. An id that is bound to
-- another key, or was released, is left alone. Returns 1 if the id is bound to no key now, otherwise 0.
local bound = redis.call('GET', KEYS[1])
if bound and bound ~= ARGV[1] then return bound == 'revoked ' .. ARGV[1] and 1 or 0 end
redis.call('SET', KEYS[1], 'revoked ' .. ARGV[1])
return 1
