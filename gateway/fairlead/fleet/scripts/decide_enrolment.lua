#!lua flags=allow-oom
-- KEYS: pending enrolments. ARGV: `agent thumbprint`, `approved` or `denied`.
-- Returns the state before that, or '' if nobody waits. One that was approved stays until its agent asks again.
local known = redis.call('HGET', KEYS[1], ARGV[1])
if not known then return '' end
local time = redis.call('TIME')
local state, first, rest = string.match(known, '^(%S+) (%d+) %d+ (.*)$')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HSET', KEYS[1], ARGV[1], string.format('%s %s %.0f %s', ARGV[2], first, now, rest))
return state
