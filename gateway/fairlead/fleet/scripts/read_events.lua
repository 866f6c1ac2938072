#!lua flags=allow-oom
-- KEYS: events, events_trimmed. ARGV: the position after which to begin, most entries, bytes wanted.
-- Returns {position of the newest event ever added, position of the last event that was removed for space or '', entries}.
-- Entries end with the one that reaches the bytes wanted, so there is at least one if there is any.
local stream = redis.pcall('XINFO', 'STREAM', KEYS[1])
local newest = '0-0'
if not stream.err then
  for i = 1, #stream, 2 do
    if stream[i] == 'last-generated-id' then newest = stream[i + 1] end
  end
end
local trimmed = redis.call('GET', KEYS[2]) or ''
local found, bytes, after = {}, 0, ARGV[1]
while #found < tonumber(ARGV[2]) and bytes < tonumber(ARGV[3]) do -- in steps, because an event may have a megabyte
  local some = redis.call('XRANGE', KEYS[1], '(' .. after, '+', 'COUNT', 16)
  if #some == 0 then break end
  for _, entry in ipairs(some) do
    found[#found + 1], after = entry, entry[1]
    bytes = bytes + #entry[2][10]
    if #found >= tonumber(ARGV[2]) or bytes >= tonumber(ARGV[3]) then break end
  end
end
return {newest, trimmed, found}
