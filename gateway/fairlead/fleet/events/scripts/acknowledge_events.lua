#!lua flags=allow-oom
-- KEYS: event_group, event_pending. ARGV: owner of the group or '' for any, then positions.
-- Returns {ok, how many of them were pending}, {gone}, or {owner} if somebody else has the group.
local owner = redis.call('HGET', KEYS[1], 'owner')
if not owner then return {'gone'} end
if ARGV[1] ~= '' and ARGV[1] ~= owner then return {'owner'} end
local done, by = 0, {}
for i = 2, #ARGV do
  if redis.call('ZREM', KEYS[2], ARGV[i]) == 1 then
    done = done + 1
    local held = redis.call('HGET', KEYS[1], 'p:' .. ARGV[i])
    local holder = held and held:match('^%d+ (.*)$')
    if holder then by[holder] = (by[holder] or 0) + 1 end
  end
  redis.call('HDEL', KEYS[1], 'p:' .. ARGV[i])
end
for holder, count in pairs(by) do
  local left = tonumber(redis.call('HGET', KEYS[1], 'w:' .. holder) or '0') - count
  if left > 0 then redis.call('HSET', KEYS[1], 'w:' .. holder, left) else redis.call('HDEL', KEYS[1], 'w:' .. holder) end
end
return {'ok', done}
