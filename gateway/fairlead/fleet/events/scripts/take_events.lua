#!lua flags=allow-oom
-- KEYS: event_group, event_pending, events. ARGV: reader, the position at which the group was, the one at which it is
-- after this, how many events are between them, ms until what is taken is due again, most events that the group may
-- have, the position until which events were lost or '', then the positions that the reader takes.
-- Returns ok, moved (another reader was faster), full or gone. Only ok changes anything.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local at = redis.call('HGET', KEYS[1], 'at')
if not at then return 'gone' end
if at ~= ARGV[2] then return 'moved' end
local taken = #ARGV - 7
if redis.call('ZCARD', KEYS[2]) + taken > tonumber(ARGV[6]) then return 'full' end
local newest, added, stream = '0-0', 0, redis.pcall('XINFO', 'STREAM', KEYS[3])
if not stream.err then
  for i = 1, #stream, 2 do
    if stream[i] == 'last-generated-id' then newest = stream[i + 1] end
    if stream[i] == 'entries-added' then added = stream[i + 1] end
  end
end
local read = tonumber(redis.call('HGET', KEYS[1], 'read') or '0') + tonumber(ARGV[4])
if ARGV[7] ~= '' then
  redis.call('HSET', KEYS[1], 'lost', ARGV[7], 'lost_at', now)
  read = added - redis.call('XLEN', KEYS[3])
end
if ARGV[3] == newest then read = added end
redis.call('HSET', KEYS[1], 'at', ARGV[3], 'read', read)
if taken > 0 then
  for i = 8, #ARGV do
    redis.call('ZADD', KEYS[2], now + tonumber(ARGV[5]), ARGV[i])
    redis.call('HSET', KEYS[1], 'p:' .. ARGV[i], '1 ' .. ARGV[1])
  end
  local before = tonumber(redis.call('HGET', KEYS[1], 'w:' .. ARGV[1]) or '0')
  redis.call('HSET', KEYS[1], 'w:' .. ARGV[1], before + taken)
  redis.call('PEXPIRE', KEYS[2], redis.call('PTTL', KEYS[1]))
end
return 'ok'
