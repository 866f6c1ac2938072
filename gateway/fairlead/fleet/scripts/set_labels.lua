#!lua flags=allow-oom
--include columns
-- KEYS: agent row, columns, cells. ARGV: limit of labels, the labels as JSON that the row must still have or '' for any, then per
-- label: key, '1' to set or '' to remove, value.
-- After the call, labels that Redis lost before no longer count as missing, because the platform has set them again.
-- Returns {'ok', labels as JSON} | {'unknown'} | {'changed'} | {'full', count}. Either all changes are made or none.
local row = redis.call('HMGET', KEYS[1], 'gen', 'labels', 'pos', 'labels_lost')
if not row[1] then return {'unknown'} end
if ARGV[2] ~= '' and (row[2] or '{}') ~= ARGV[2] then return {'changed'} end
local labels, count = cjson.decode(row[2] or '{}'), 0
for i = 3, #ARGV, 3 do
  if ARGV[i + 1] == '1' then labels[ARGV[i]] = ARGV[i + 2] else labels[ARGV[i]] = nil end
end
for _ in pairs(labels) do count = count + 1 end
if count > tonumber(ARGV[1]) then return {'full', count} end
local packed = cjson.encode(labels)
redis.call('HSET', KEYS[1], 'labels', packed)
if row[4] then redis.call('HDEL', KEYS[1], 'labels_lost') end
-- A row that has no position yet gets one with these labels.
local gen, pos = position_of(row[3])
if gen then
  local changes = row[4] and {'x', false} or {}
  for i = 3, #ARGV, 3 do add_change(changes, 'l.', ARGV[i], ARGV[i + 1] == '1' and ARGV[i + 2]) end
  keep_columns(KEYS[2], KEYS[3], write_cells, gen, pos, changes, {})
end
return {'ok', packed}
