#!lua flags=allow-oom
-- KEYS: due. ARGV: count, ms after which another command sweeper may take them again.
-- Returns {now, when the first entry is due after this call or 0, members…}; that time is not later than now if more
-- members are due.
-- Taking a member only postpones it, so a sweeper that dies before it has processed its members loses nothing.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local taken = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[1])
if #taken > 0 then
  local again, moved = string.format('%.0f', now + tonumber(ARGV[2])), {}
  for i, member in ipairs(taken) do
    moved[2 * i - 1], moved[2 * i] = again, member
  end
  redis.call('ZADD', KEYS[1], unpack(moved))
end
local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
return {string.format('%.0f', now), first[2] and string.format('%.0f', tonumber(first[2])) or '0', unpack(taken)}
