#!lua flags=allow-oom
-- KEYS: cmd, in. ARGV: n. Removes all input chunks before `n`, which the agent has consumed, to make room for more.
-- Returns the bytes that are left. A repeated call finds nothing to remove and returns 0.
local input = redis.call('HGET', KEYS[1], 'in')
if not input then return 0 end
local gone = 0
for _, entry in ipairs(redis.call('XRANGE', KEYS[2], '-', string.format('%.0f-0', tonumber(ARGV[1])))) do
  gone = gone + #entry[2][2]
end
if gone == 0 then return 0 end
redis.call('XTRIM', KEYS[2], 'MINID', string.format('%.0f-0', tonumber(ARGV[1]) + 1))
local next_n, bytes, ended, digest = string.match(input, '^(%d+)|(%d+)|(%d)|(%x*)$')
bytes = tonumber(bytes) - gone
redis.call('HSET', KEYS[1], 'in', string.format('%s|%.0f|%s|%s', next_n, bytes, ended, digest))
return bytes
