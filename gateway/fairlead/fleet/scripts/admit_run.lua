#!lua flags=allow-oom
-- KEYS: tenant's use. ARGV: run, its concurrency, when it ends at the latest ms, the most that all runs may have.
-- Counts the concurrency of a run that is about to begin. The same one may be counted again.
-- Returns {'ok'} | {'full', the concurrency of the others}.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local sum, all = 0, redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local concurrency, till = string.match(all[i + 1], '^(%d+) till (%d+)$')
  if concurrency then
    if tonumber(till) <= now then
      redis.call('HDEL', KEYS[1], all[i])
    elseif all[i] ~= 'run:' .. ARGV[1] then
      sum = sum + tonumber(concurrency)
    end
  end
end
if sum + tonumber(ARGV[2]) > tonumber(ARGV[4]) then return {'full', sum} end
redis.call('HSET', KEYS[1], 'run:' .. ARGV[1], ARGV[2] .. ' till ' .. ARGV[3])
return {'ok'}
