#!lua flags=allow-oom
-- KEYS: events, events_bytes, events_trimmed. ARGV: most entries, most bytes, agent, type, id, time ms, payload.
-- Returns how many old events were removed for this one. Bytes are those of payloads, types and ids, and EVENT_BYTES for
-- each entry besides. At most 100 entries are removed at once, so that other clients do not have to wait. The last one
-- that was removed is noted, so that a reader who had not reached it is told; for a new stream that is whatever was there
-- before its first event.
local EVENT_BYTES = 120
local function size(entry) return #entry[2][2] + #entry[2][4] + #entry[2][6] + #entry[2][10] + EVENT_BYTES end
local added = redis.call('XADD', KEYS[1], '*', 'a', ARGV[3], 't', ARGV[4], 'i', ARGV[5], 'at', ARGV[6], 'p', ARGV[7])
local bytes = redis.call('INCRBY', KEYS[2], #ARGV[3] + #ARGV[4] + #ARGV[5] + #ARGV[7] + EVENT_BYTES)
if redis.call('EXISTS', KEYS[3]) == 0 then
  redis.call('SET', KEYS[3], string.format('%.0f-0', tonumber(added:match('^%d+')) - 1))
end
local over = redis.call('XLEN', KEYS[1]) - tonumber(ARGV[1])
if bytes <= tonumber(ARGV[2]) and over <= 0 then return 0 end
local removed, freed, last = 0, 0, nil
for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 100)) do
  if bytes - freed <= tonumber(ARGV[2]) and removed >= over then break end
  removed, freed, last = removed + redis.call('XDEL', KEYS[1], entry[1]), freed + size(entry), entry[1]
end
if last then redis.call('SET', KEYS[3], last) end
if redis.call('XLEN', KEYS[1]) == 0 then redis.call('DEL', KEYS[2]) else redis.call('DECRBY', KEYS[2], freed) end
return removed
