#!lua
--include row
-- KEYS: cmd, out. ARGV: offset, bytes wanted, follower ('' or a node's lease name).
-- Returns {'ok', seq, entries, record} | {'gone'}. State and entries are of one moment: when no target is open and
-- the entries reach seq, nothing more will come; only then `record` holds the command's fields but its payload.
local STEP, MOST = 32, 1024 -- entries: a step of the largest chunks is 2 MiB more than was wanted
local rec = redis.call('HMGET', KEYS[1], 'sum', 'w')
if not rec[1] then return {'gone'} end
local sum, from, wanted = parse_sum(rec[1]), tonumber(ARGV[1]), tonumber(ARGV[2])
local seq, open = sum.seq, sum.open > 0
if ARGV[3] ~= '' and open and not string.find(' ' .. rec[2] .. ' ', ' ' .. ARGV[3] .. ' ', 1, true) then
  -- The newest 16 are kept: a node that stopped following is dropped by those that come after it.
  local kept, count = ARGV[3], 1
  for name in string.gmatch(rec[2], '%S+') do
    count = count + 1
    if count <= 16 then kept = kept .. ' ' .. name end
  end
  redis.call('HSET', KEYS[1], 'w', kept)
end
local entries, size = {}, 0
while from + #entries < seq and size < wanted and #entries < MOST do
  local part = redis.call('XRANGE', KEYS[2], string.format('%.0f-0', from + #entries + 1), '+', 'COUNT', STEP)
  if #part == 0 then break end
  for _, entry in ipairs(part) do
    entries[#entries + 1] = entry
    size = size + #entry[2][8]
  end
end
local record = {}
if not open and from + #entries >= seq then
  local all = redis.call('HGETALL', KEYS[1])
  for i = 1, #all, 2 do
    if all[i] ~= 'payload' then
      record[#record + 1] = all[i]
      record[#record + 1] = all[i + 1]
    end
  end
end
return {'ok', seq, entries, record}
