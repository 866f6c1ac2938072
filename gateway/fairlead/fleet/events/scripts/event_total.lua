#!lua flags=allow-oom
-- KEYS: events. Returns how many entries were ever added, 0 if there is no such stream.
local stream = redis.pcall('XINFO', 'STREAM', KEYS[1])
if stream.err then return 0 end
for i = 1, #stream, 2 do
  if stream[i] == 'entries-added' then return stream[i + 1] end
end
return 0
