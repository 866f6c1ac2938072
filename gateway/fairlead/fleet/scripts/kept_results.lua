#!lua flags=allow-oom
-- KEYS: kept, kept_until, kept_bytes. ARGV: bytes that the shard may keep, the most commands to look at.
-- Returns {bytes that it keeps, command agent bytes …}: the commands that have ended and whose results are to be dropped,
-- those that have been kept for long enough, or else the oldest ones that exceed what the shard may keep. What is noted
-- of records that have expired is removed; their keys are not named to this script, and have the tag of its own.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local records = string.gsub(KEYS[1], 'kept', 'cmd') .. ':'
local limit, most, held = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(redis.call('GET', KEYS[3]) or '0')
local found, gone = {}, {}
for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, most)) do
  if redis.call('EXISTS', records .. string.match(member, '^%S+')) == 1 then
    found[#found + 1] = member
  else
    gone[#gone + 1] = member
    held = held - tonumber(string.match(member, '%d+$'))
  end
end
if #gone > 0 then
  redis.call('ZREM', KEYS[1], unpack(gone))
  redis.call('ZREM', KEYS[2], unpack(gone))
  if redis.call('EXISTS', KEYS[1]) == 1 then
    redis.call('SET', KEYS[3], string.format('%.0f', held))
  else
    redis.call('DEL', KEYS[3])
    held = 0
  end
end
if #found == 0 and held > limit then
  local left = held
  for _, member in ipairs(redis.call('ZRANGE', KEYS[1], 0, most - 1)) do
    if left <= limit then break end
    found[#found + 1] = member
    left = left - tonumber(string.match(member, '%d+$'))
  end
end
return {held, unpack(found)}
