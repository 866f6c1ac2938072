#!lua flags=allow-oom
-- KEYS: disconnect. ARGV: operation, ms for which it holds, ms for which it is kept, then its fields and their values.
-- Renews the directive of this operation. If there is none, or that of another operation, it is written with its fields
-- and the time at which it began; without fields nothing happens. Returns 1 if the directive of this operation holds
-- now, otherwise 0.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
if redis.call('HGET', KEYS[1], 'operation') ~= ARGV[1] then
  if #ARGV == 3 then return 0 end
  redis.call('DEL', KEYS[1])
  redis.call('HSET', KEYS[1], 'operation', ARGV[1], 'began', string.format('%.0f', now), unpack(ARGV, 4))
end
redis.call('HSET', KEYS[1], 'until', string.format('%.0f', now + ARGV[2]))
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
