#!lua
--include row
-- KEYS: cmd, out. ARGV: offset, bytes wanted, follower ('' or a node's lease name).
-- Returns {'ok', seq, entries, record} | {'gone'}. State and entries are of one moment: when no target is open and
-- the entries reach seq, nothing more will come; only then `record` holds the command's fields but its payload.
local rec = redis.call('HMGET', KEYS[1], 'open', 'seq', 'bytes', 'truncated', 'w')
if not rec[1] then return {'gone'} end
local seq, bytes, from = tonumber(rec[2]), tonumber(rec[3]), tonumber(ARGV[1])
if ARGV[3] ~= '' and rec[1] ~= '0' and not string.find(' ' .. (rec[5] or '') .. ' ', ' ' .. ARGV[3] .. ' ', 1, true) then
  -- The newest 16 are kept: a node that stopped following is dropped by those that come after it.
  local kept, count = ARGV[3], 1
  for name in string.gmatch(rec[5] or '', '%S+') do
    count = count + 1
    if count <= 16 then kept = kept .. ' ' .. name end
  end
  redis.call('HSET', KEYS[1], 'w', kept)
end
local entries = {}
if from < seq then
  local average = math.max(bytes / seq, 64)
  local count = math.min(math.max(math.floor(tonumber(ARGV[2]) / average), 8), 1024)
  entries = redis.call('XRANGE', KEYS[2], string.format('%.0f-0', from + 1), '+', 'COUNT', count)
end
local record = {}
if rec[1] == '0' and from + #entries >= seq then
  local all = redis.call('HGETALL', KEYS[1])
  for i = 1, #all, 2 do
    if all[i] ~= 'payload' then
      record[#record + 1] = all[i]
      record[#record + 1] = all[i + 1]
    end
  end
end
return {'ok', seq, entries, record}
