#!lua
-- KEYS: events. ARGV: agent, the entry behind which to look ('-' for the first), how many to go through.
-- Returns {removed, the last entry that was looked at, '' when that was the end}: so a long stream is gone through in
-- steps, which nobody has to wait for.
local page = redis.call('XRANGE', KEYS[1], ARGV[2] == '-' and '-' or '(' .. ARGV[2], '+', 'COUNT', ARGV[3])
local removed = 0
for _, entry in ipairs(page) do
  if entry[2][2] == ARGV[1] then removed = removed + redis.call('XDEL', KEYS[1], entry[1]) end
end
return {removed, #page == tonumber(ARGV[3]) and page[#page][1] or ''}
