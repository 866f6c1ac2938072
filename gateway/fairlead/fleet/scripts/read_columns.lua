#!lua flags=no-writes,allow-oom
-- KEYS: columns, cells. ARGV: names of columns.
-- Returns {'1' if the columns are ready, number of positions, '1' if a fact was refused a column, '1' if a label was,
-- then for each name its codes, cells, and the first and second bytes of hashes, all nil if there is no such column}. See
-- columns.lua.
local asked, names = {'ready', 'next', 'f!', 'l!', 'gen', 'room'}, #ARGV
for i = 1, names do asked[6 + i], asked[6 + names + i] = ARGV[i], ARGV[i] .. '#' end
local head = redis.call('HMGET', KEYS[1], unpack(asked))
local count = tonumber(head[2]) or 0
local reply = {head[1] and '1' or '', count, head[3] or '', head[4] or ''}
if not head[1] then return reply end
local gen = head[5] or ''
if redis.call('GETRANGE', KEYS[2], 0, #gen - 1) ~= gen then
  reply[1] = ''
  return reply
end
local function cells_of(slot)
  if count == 0 then return '' end
  local first = 16 + slot * head[6]
  return redis.call('GETRANGE', KEYS[2], first, first + count - 1)
end
for i = 1, names do
  local column, at = head[6 + i], #reply
  if column then
    local cells, hashes = cells_of(string.sub(column, 1, 3)), head[6 + names + i]
    reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4] = string.sub(column, 4), cells, '', ''
    if hashes and string.find(cells, '\255', 1, true) then
      reply[at + 3], reply[at + 4] = cells_of(string.sub(hashes, 1, 3)), cells_of(string.sub(hashes, 4, 6))
    end
  else
    reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4] = false, false, false, false
  end
end
return reply
