#!lua
-- KEYS: key of an agent. ARGV: thumbprint.
-- Binds the agent's id to the key, unless it is bound to another one. Returns the thumbprint that it is bound to.
if redis.call('SET', KEYS[1], ARGV[1], 'NX') then return ARGV[1] end
return redis.call('GET', KEYS[1])
