#!lua flags=allow-oom
--include record
-- KEYS: cmd, out. ARGV: offset, bytes wanted, follower ('' or a node's lease name), the offset before which results
-- that are retained as a window may be removed.
-- Returns {'ok', seq, entries, record, held} | {'gone'} | {'trimmed', first offset that is left} |
-- {'beyond', seq, record} | {'dropped', seq, when (ms)}, if the results were dropped after the end of the command.
-- Results that a later run has made void are skipped: the entries then begin with the one of kind `retry`.
-- State and entries are read atomically: if no target is open and the entries reach seq, there will be no more results.
-- Only in that case, or if no target is open and `offset` is beyond seq, `record` holds the command's fields, except its
-- payload. `held` is the number of bytes left if results are retained as a window, otherwise -1.
local MOST = 1024 -- entries
local function ended_record()
  local record, all = {}, redis.call('HGETALL', KEYS[1])
  for i = 1, #all, 2 do
    if all[i] ~= 'payload' and all[i] ~= 'few' then
      record[#record + 1] = all[i]
      record[#record + 1] = all[i + 1]
    end
  end
  return record
end
local rec = redis.call('HMGET', KEYS[1], 'sum', 'w', 'terms', 'void', 'dropped', 'few')
if not rec[1] then return {'gone'} end
local sum, from, wanted, behind = parse_sum(rec[1]), tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[4])
local seq, open = sum.seq, sum.open > 0
local step = wanted > 1 and 32 or 1 -- entries: 32 of the largest chunks exceed the bytes wanted by 2 MiB
if rec[5] and from < seq then return {'dropped', seq, tonumber(rec[5])} end
if ARGV[3] ~= '' and open and not string.find(' ' .. rec[2] .. ' ', ' ' .. ARGV[3] .. ' ', 1, true) then
  -- The newest 16 followers are kept: later followers displace a node that has stopped following.
  local kept, count = ARGV[3], 1
  for name in string.gmatch(rec[2], '%S+') do
    count = count + 1
    if count <= 16 then kept = kept .. ' ' .. name end
  end
  redis.call('HSET', KEYS[1], 'w', kept)
end
-- Whoever has read results that Redis has lost since then follows, as above, until they come again.
if from > seq then return {'beyond', seq, open and {} or ended_record()} end
from = math.max(from, tonumber(rec[4]) or 0)
local held = -1
local _, _, _, retain = parse_terms(rec[3])
if retain == 'window' then
  if behind > 0 then
    local gone, read = 0, redis.call('XRANGE', KEYS[2], '-', string.format('%.0f-0', behind))
    for _, entry in ipairs(read) do gone = gone + #entry[2][8] end
    if #read > 0 then
      redis.call('XTRIM', KEYS[2], 'MINID', string.format('%.0f-0', behind + 1))
      sum.bytes = sum.bytes - gone
      redis.call('HSET', KEYS[1], 'sum', pack_sum(sum))
    end
  end
  held = sum.bytes + redis.call('XLEN', KEYS[2]) * ENTRY_BYTES
end
local entries, size = {}, 0
if rec[6] then
  local few = cmsgpack.unpack(rec[6])
  for i = from + 1, seq do
    entries[#entries + 1] = {i .. '-0', {'a', few[1], 'n', few[3 * i - 1], 'k', few[3 * i], 'p', few[3 * i + 1]}}
    size = size + #few[3 * i + 1]
    if size >= wanted then break end
  end
end
while from + #entries < seq and size < wanted and #entries < MOST do
  local next_id = string.format('%.0f-0', from + #entries + 1)
  local part = redis.call('XRANGE', KEYS[2], next_id, '+', 'COUNT', step)
  if #part == 0 and #entries == 0 then return {'trimmed', seq} end
  if #part == 0 then break end
  if #entries == 0 and part[1][1] ~= next_id then
    return {'trimmed', tonumber(string.match(part[1][1], '^%d+')) - 1}
  end
  for _, entry in ipairs(part) do
    entries[#entries + 1] = entry
    size = size + #entry[2][8]
  end
end
return {'ok', seq, entries, not open and from + #entries >= seq and ended_record() or {}, held}
