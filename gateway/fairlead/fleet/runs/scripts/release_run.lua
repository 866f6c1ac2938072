#!lua flags=allow-oom
-- KEYS: run. ARGV: gen of the owner.
-- Ends the ownership now, if it is still that of `gen`. Returns 1 if it was. The time is noted, because whoever takes
-- the run much later must not start again what may have run.
if redis.call('HGET', KEYS[1], 'gen') ~= ARGV[1] then return 0 end
local t = redis.call('TIME')
redis.call('HSET', KEYS[1], 'until', string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000) - 1))
return 1
