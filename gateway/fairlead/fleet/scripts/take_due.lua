#!lua
-- KEYS: due. ARGV: count, ms until another keeper may take them again. Returns {now, members…}.
-- Taking only moves the time on: a keeper that dies with them in hand loses nothing.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local taken = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[1])
for _, member in ipairs(taken) do
  redis.call('ZADD', KEYS[1], string.format('%.0f', now + tonumber(ARGV[2])), member)
end
return {string.format('%.0f', now), unpack(taken)}
