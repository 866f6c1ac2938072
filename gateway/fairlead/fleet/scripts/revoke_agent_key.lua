#!lua flags=allow-oom
-- KEYS: bound key of an agent.
-- Binds the agent's id to no key, until it is released: `revoked THUMBPRINT` equals no thumbprint. Returns the thumbprint
-- of the key that is revoked, or '' if the id was bound to none.
local bound = redis.call('GET', KEYS[1])
if not bound or string.sub(bound, 1, 1) == '@' then return '' end
local revoked = string.match(bound, '^revoked ([%w_-]+)')
if revoked then return revoked end
redis.call('SET', KEYS[1], 'revoked ' .. bound)
return string.match(bound, '^[%w_-]+')
