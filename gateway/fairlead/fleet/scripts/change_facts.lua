#!lua flags=allow-oom
-- KEYS: agent row, columns, cells. ARGV: the session that has told the facts, the facts as JSON, what they were before as
-- far as that session knows, the line that this change has in the history then, and for each fact that differs and that a
-- selector can name: its column, and '-' for no value any more, '+VALUE', or '\1VALUE\0', as columns have it.
-- Returns 1, or 0 if another session has the agent, or none, or -1 if the row has other facts since a later time: what a
-- connection that stalled brings late must not undo what was sent after it.
local row = redis.call('HMGET', KEYS[1], 'sid', 'lease', 'facts', 'pos', 'fact_changes')
if row[1] ~= ARGV[1] or row[2] == '' then return 0 end
if row[3] == ARGV[2] then return 1 end
local known = row[3] == ARGV[3]
if not known and (tonumber(string.match(row[5] or '', '^%d+')) or 0) > tonumber(string.match(ARGV[4], '^%d+')) then
  return -1
end

-- Writes the cells of values whose codes the columns have, as they do for most changes. Returns false if there is another
-- one, or if anything is wrong with the columns: then all cells are written below, which may repeat some.
local function write_known()
  local gen, pos = string.match(row[4] or '', '^(%d+)%.(%d+)$')
  local asked, n = {'gen', 'room'}, 2
  for i = 5, #ARGV, 2 do
    n = n + 1
    asked[n] = ARGV[i]
  end
  local found, codes = redis.pcall('HMGET', KEYS[2], unpack(asked)), {}
  if found[1] ~= gen or not found[2] then return false end
  for i = 3, n do
    local value = ARGV[2 * i]
    if not found[i] or string.byte(value) ~= 1 then return false end
    local _, last = string.find(found[i], value, 1, true)
    if not last then return false end
    codes[i] = string.sub(found[i], last + 1, last + 1)
  end
  for i = 3, n do
    local at = 16 + string.sub(found[i], 1, 3) * found[2] + pos
    if type(redis.pcall('SETRANGE', KEYS[3], at, codes[i])) == 'table' then return false end
  end
  return true
end

local set = {}
if not (known and write_known()) then
-- The functions are made only here, because most changes need none of them.
--include columns
--include facts
  local labels = redis.call('HMGET', KEYS[1], 'labels', 'labels_lost')
  if not known then
    local now, differing, all = tonumber(string.match(ARGV[4], '^%d+')), difference(row[3], ARGV[2])
    keep_facts(KEYS[1], KEYS[2], KEYS[3], set, now, row[3], ARGV[2], differing, all, row[5], row[4], labels[1], labels[2])
    redis.call('HSET', KEYS[1], unpack(set))
    return 1
  end
  local changes = {}
  for i = 5, #ARGV, 2 do
    local value, sign = ARGV[i + 1], string.byte(ARGV[i + 1])
    changes[i - 4], changes[i - 3] = ARGV[i], sign == 1 and string.sub(value, 2, -2) or sign == 43 and string.sub(value, 2)
  end
  local pos = keep_columns(KEYS[2], KEYS[3], index_row, KEYS[1], row[4], changes, ARGV[2], labels[1] or '{}', labels[2])
  if pos then set = {'pos', pos} end
end
-- The history has five lines at most, as in facts.lua, and none for the same facts in another order.
local older, n = string.match(row[5] or '', '^[^\n]*\n[^\n]*\n[^\n]*\n[^\n]*') or row[5], #set
set[n + 1], set[n + 2] = 'facts', ARGV[2]
if string.sub(ARGV[4], -5) ~= ' 0 {}' then
  set[n + 3], set[n + 4] = 'fact_changes', older and ARGV[4] .. '\n' .. older or ARGV[4]
end
redis.call('HSET', KEYS[1], unpack(set))
return 1
