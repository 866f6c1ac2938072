#!lua flags=allow-oom
-- KEYS: event_group, event_pending, event_groups, events, events_trimmed. ARGV: name, reader, most events that the
-- reader may have, most that the group may have, ms until what is taken is due again, life of an unused group in ms,
-- most events to take, bytes wanted.
-- Returns {ok, position of the group, how many more events the reader may take, {attempts, entry} of each event that
-- was due and is now the reader's, positions of those that were removed for space before they were acknowledged}, or
-- {gone}. An event of another reader is due when it was not acknowledged in time.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local at = redis.call('HGET', KEYS[1], 'at')
if not at then return {'gone'} end
local reader, most = ARGV[2], tonumber(ARGV[3])
redis.call('ZADD', KEYS[3], now, ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[6])
redis.call('PEXPIRE', KEYS[2], ARGV[6])
local function after(one, other)
  local ms, n = one:match('^(%d+)-(%d+)$')
  local other_ms, other_n = other:match('^(%d+)-(%d+)$')
  ms, other_ms = tonumber(ms), tonumber(other_ms)
  return ms > other_ms or (ms == other_ms and tonumber(n) > tonumber(other_n))
end
local function count(who, change)
  local left = (tonumber(redis.call('HGET', KEYS[1], 'w:' .. who) or '0')) + change
  if left > 0 then redis.call('HSET', KEYS[1], 'w:' .. who, left) else redis.call('HDEL', KEYS[1], 'w:' .. who) end
end
local mine = tonumber(redis.call('HGET', KEYS[1], 'w:' .. reader) or '0')
local trimmed = redis.call('GET', KEYS[5]) or '0-0'
local entries, lost, bytes = {}, {}, 0
for _, position in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, ARGV[7])) do
  local held = redis.call('HGET', KEYS[1], 'p:' .. position) or '1 '
  local attempts, holder = held:match('^(%d+) (.*)$')
  local entry = redis.call('XRANGE', KEYS[4], position, position)[1]
  if not entry then
    redis.call('ZREM', KEYS[2], position)
    redis.call('HDEL', KEYS[1], 'p:' .. position)
    count(holder, -1)
    if holder == reader then mine = mine - 1 end
    if not after(position, trimmed) then lost[#lost + 1] = position end
  elseif holder == reader or mine < most then
    if holder ~= reader then
      count(holder, -1)
      count(reader, 1)
      mine = mine + 1
    end
    redis.call('HSET', KEYS[1], 'p:' .. position, (attempts + 1) .. ' ' .. reader)
    redis.call('ZADD', KEYS[2], now + tonumber(ARGV[5]), position)
    entries[#entries + 1] = {attempts + 1, entry}
    bytes = bytes + #entry[2][10]
    if bytes >= tonumber(ARGV[8]) then break end
  end
end
local room = math.min(most - mine, tonumber(ARGV[4]) - redis.call('ZCARD', KEYS[2]))
return {'ok', at, room, entries, lost}
