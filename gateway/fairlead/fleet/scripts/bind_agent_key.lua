#!lua
-- KEYS: key of an agent. ARGV: thumbprint.
-- Binds the agent's id to the key, unless it is bound to another one. Returns the thumbprint that it is bound to.
local bound = redis.call('GET', KEYS[1])
-- An id that was released has an empty string for some time.
if bound and bound ~= '' then return bound end
redis.call('SET', KEYS[1], ARGV[1])
return ARGV[1]
