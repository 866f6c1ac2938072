#!lua flags=no-writes,allow-oom
-- KEYS: columns. ARGV: cells of one chunk, names of columns.
-- Returns {'1' if the columns are ready, number of positions, '1' if a fact was refused a column, '1' if a label was,
-- then for each name its codes, cells and hashes, all nil if there is no such column}.
local head = redis.call('HMGET', KEYS[1], 'ready', 'next', 'f!', 'l!')
local count = tonumber(head[2]) or 0
local reply = {head[1] and '1' or '', count, head[3] or '', head[4] or ''}
if not head[1] then return reply end
local function joined(name, sign, size)
  local fields, missing = {}, string.rep('\0', size)
  for chunk = 0, math.ceil(count / tonumber(ARGV[1])) - 1 do fields[chunk + 1] = name .. sign .. chunk end
  if #fields == 0 then return '' end
  local parts = redis.call('HMGET', KEYS[1], unpack(fields))
  for i = 1, #parts do
    local part = parts[i] or ''
    parts[i] = #part < size and part .. string.sub(missing, #part + 1) or part
  end
  return table.concat(parts)
end
for i = 2, #ARGV do
  local codes, at = redis.call('HGET', KEYS[1], ARGV[i]), #reply
  if codes then
    local cells = joined(ARGV[i], ':', tonumber(ARGV[1]))
    local others = string.find(cells, '\255', 1, true)
    reply[at + 1], reply[at + 2] = codes, cells
    reply[at + 3] = others and joined(ARGV[i], '#', 2 * tonumber(ARGV[1])) or ''
  else
    reply[at + 1], reply[at + 2], reply[at + 3] = false, false, false
  end
end
return reply
