#!lua flags=allow-oom
-- KEYS: events, events_bytes, events_agents. ARGV: agent, the entry after which to begin ('-' for the first), how many entries to examine.
-- Returns {removed, the last entry that was examined or '' at the end of the stream}. A long stream is processed in
-- steps, so that other clients do not have to wait.
local page = redis.call('XRANGE', KEYS[1], ARGV[2] == '-' and '-' or '(' .. ARGV[2], '+', 'COUNT', ARGV[3])
local EVENT_BYTES = 120 -- as in add_event.lua
local removed, freed = 0, 0
for _, entry in ipairs(page) do
  local fields = entry[2]
  if fields[2] == ARGV[1] then
    removed = removed + redis.call('XDEL', KEYS[1], entry[1])
    freed = freed + #fields[2] + #fields[4] + #fields[6] + #fields[10] + EVENT_BYTES
  end
end
if freed > 0 then redis.call('DECRBY', KEYS[2], freed) end
redis.call('HDEL', KEYS[3], ARGV[1])
return {removed, #page == tonumber(ARGV[3]) and page[#page][1] or ''}
