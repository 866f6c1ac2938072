#!lua flags=allow-oom
-- KEYS: pending enrolments. ARGV: `agent thumbprint`, id of the token, `approved` or `denied`.
-- Returns 1, or 0 if nobody waits with this token. One that was approved stays until its agent asks again.
local known = redis.call('HGET', KEYS[1], ARGV[1])
if not known then return 0 end
local first, token, address = string.match(known, '^%S+ (%d+) %d+ (%S+) (.*)$')
if token ~= ARGV[2] then return 0 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HSET', KEYS[1], ARGV[1], string.format('%s %s %.0f %s %s', ARGV[3], first, now, token, address))
return 1
