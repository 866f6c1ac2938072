#!lua flags=allow-oom
-- KEYS: bound key of an agent. ARGV: seconds for which credentials of the old key may still be valid.
-- Ends the binding of the agent's id. `@ISSUED` is left of it: the next key is that of an enrolment, or of a certificate or
-- JWT that was issued after that. For an id that had a certificate, this is when that was issued, because authorities date
-- certificates back, and it is kept because certificates are valid for long; otherwise it is now. Returns 1, or 0 if the
-- id was bound to no key.
local bound = redis.call('GET', KEYS[1])
if not bound then return 0 end
local since = string.match(bound, '@(%d+)$')
if since then
  redis.call('SET', KEYS[1], '@' .. since, 'KEEPTTL')
else
  redis.call('SET', KEYS[1], '@' .. redis.call('TIME')[1], 'EX', ARGV[1])
end
return 1
