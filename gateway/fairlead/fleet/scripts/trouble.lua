#!lua
-- KEYS: agent row. ARGV: what went wrong, as one line; how many to keep. With its time it stands before the older ones.
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local t = redis.call('TIME')
local lines = {string.format('%.0f ', t[1] * 1000 + math.floor(t[2] / 1000)) .. ARGV[1]}
for line in string.gmatch(redis.call('HGET', KEYS[1], 'trouble') or '', '[^\n]+') do
  if #lines == tonumber(ARGV[2]) then break end
  lines[#lines + 1] = line
end
redis.call('HSET', KEYS[1], 'trouble', table.concat(lines, '\n'))
return 1
