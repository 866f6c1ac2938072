#!lua flags=allow-oom
-- KEYS: key of an agent. ARGV: thumbprint.
-- Binds the agent's id to the key, unless it is bound to another one. Returns the thumbprint that it is bound to.
local bound = redis.call('GET', KEYS[1])
-- `@ISSUED` is an id that was released, and `KEY@ISSUED` is bound to the key of a certificate.
if bound and string.sub(bound, 1, 1) ~= '@' then return bound end
redis.call('SET', KEYS[1], ARGV[1])
return ARGV[1]
