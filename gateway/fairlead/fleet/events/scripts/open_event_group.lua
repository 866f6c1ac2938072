#!lua flags=allow-oom
-- KEYS: event_groups, event_group, event_pending, events. ARGV: name, owner, terms, the position at which a new group
-- begins, most groups, life of an unused group in ms.
-- Returns {ok, owner, terms} of the group, which is made if there is none, or {full}.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local owner, terms = unpack(redis.call('HMGET', KEYS[2], 'owner', 'terms'))
if not owner then
  redis.call('ZREM', KEYS[1], ARGV[1])
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - tonumber(ARGV[6]))
  if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[5]) then return {'full'} end
  owner, terms = ARGV[2], ARGV[3]
  local added, stream = 0, redis.pcall('XINFO', 'STREAM', KEYS[4])
  if not stream.err then
    for i = 1, #stream, 2 do
      if stream[i] == 'entries-added' then added = stream[i + 1] end
    end
    -- How many are before a position is not known: the lag is that of a group that begins with the oldest event.
    added = added - redis.call('XLEN', KEYS[4])
  end
  redis.call('DEL', KEYS[3])
  redis.call('HSET', KEYS[2], 'owner', owner, 'terms', terms, 'at', ARGV[4], 'read', added, 'began', now)
end
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('PEXPIRE', KEYS[2], ARGV[6])
return {'ok', owner, terms}
