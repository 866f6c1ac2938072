#!lua
-- KEYS: due. ARGV: count, ms until another sweeper may take them again.
-- Returns {now, when the next of those that were not taken is due or 0, members…}: not later than now when there are more.
-- Taking only moves the time on: a sweeper that dies with them in hand loses nothing.
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
