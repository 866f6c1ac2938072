#!lua
-- KEYS: cmd, in. ARGV: n. The agent has consumed all input chunks before `n`: they make room for more.
-- Returns the bytes that are left. Repeating it finds nothing.
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local gone = 0
for _, entry in ipairs(redis.call('XRANGE', KEYS[2], '-', string.format('%.0f-0', tonumber(ARGV[1])))) do
  gone = gone + #entry[2][2]
end
if gone == 0 then return 0 end
redis.call('XTRIM', KEYS[2], 'MINID', string.format('%.0f-0', tonumber(ARGV[1]) + 1))
return redis.call('HINCRBY', KEYS[1], 'in_bytes', -gone)
