#!lua flags=allow-oom
-- KEYS: run, ends. ARGV: offset, count, follower ('' or a node's lease name).
-- Returns {'ok', state, ended, counts, number of ends, ends from the offset on} | {'gone'}. State and ends are read in
-- one step: if the run has ended and the ends reach their number, there will be no more.
local row = redis.call('HMGET', KEYS[1], 'state', 'ended', 'counts', 'w')
if not row[1] then return {'gone'} end
if ARGV[3] ~= '' and row[2] == '0' and not string.find(' ' .. row[4] .. ' ', ' ' .. ARGV[3] .. ' ', 1, true) then
  -- The newest 16 followers are kept: later followers displace a node that has stopped following.
  local kept, count = ARGV[3], 1
  for name in string.gmatch(row[4], '%S+') do
    count = count + 1
    if count <= 16 then kept = kept .. ' ' .. name end
  end
  redis.call('HSET', KEYS[1], 'w', kept)
end
local from = tonumber(ARGV[1])
local ends = redis.call('LRANGE', KEYS[2], from, from + tonumber(ARGV[2]) - 1)
return {'ok', row[1], row[2], row[3], redis.call('LLEN', KEYS[2]), ends}
