#!lua flags=allow-oom
-- KEYS: kept, kept_until, kept_bytes. ARGV: bytes that the shard may keep, the most commands to return.
-- Returns {bytes that it keeps, command agent bytes …}: the commands that have ended and whose results are to be dropped,
-- those that have been kept for long enough, or else the oldest ones that exceed what the shard may keep.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local held, most = tonumber(redis.call('GET', KEYS[3]) or '0'), tonumber(ARGV[2])
local found = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, most)
if #found == 0 and held > tonumber(ARGV[1]) then
  local left = held
  for _, member in ipairs(redis.call('ZRANGE', KEYS[1], 0, most - 1)) do
    if left <= tonumber(ARGV[1]) then break end
    found[#found + 1] = member
    left = left - tonumber(string.match(member, '%d+$'))
  end
end
return {held, unpack(found)}
