#!lua
-- KEYS: events. ARGV: agent, the entry after which to begin ('-' for the first), how many entries to examine.
-- Returns {removed, the last entry that was examined or '' at the end of the stream}. A long stream is processed in
-- steps, so that other clients do not have to wait.
local page = redis.call('XRANGE', KEYS[1], ARGV[2] == '-' and '-' or '(' .. ARGV[2], '+', 'COUNT', ARGV[3])
local removed = 0
for _, entry in ipairs(page) do
  if entry[2][2] == ARGV[1] then removed = removed + redis.call('XDEL', KEYS[1], entry[1]) end
end
return {removed, #page == tonumber(ARGV[3]) and page[#page][1] or ''}
