-- Functions of the scripts that write what an agent says of itself: its facts, their last changes and their columns. They
-- come after those of columns.lua.

-- The last changes of facts with one more, a line `ms LEFT {"KEY": ["before", "after"]}` before the older ones; LEFT counts
-- those for which the line has no room.
local function with_change(older, now, differing, old, new)
  local changed, size, left = {}, 0, 0
  for i = 1, #differing do
    local key = differing[i]
    local length = #key + #(old[key] or '') + #(new[key] or '')
    if size + length > 512 then
      left = left + 1
    else
      size = size + length
      changed[key] = {old[key] or cjson.null, new[key] or cjson.null}
    end
  end
  local lines = {string.format('%.0f %d ', now, left) .. cjson.encode(changed)}
  for line in string.gmatch(older, '[^\n]+') do
    if #lines == 5 then break end
    lines[#lines + 1] = line
  end
  return table.concat(lines, '\n')
end

-- Writes other facts of an agent into the columns, and adds to `set` what its row is to have. `before` is what it had.
local function keep_facts(row, columns, set, now, before, facts, placed, labels, lost)
  local read, old = pcall(cjson.decode, before or '{}')
  if not read or type(old) ~= 'table' then old = {} end
  local new, differing, changes, n = cjson.decode(facts), {}, {}, #set
  for key, value in pairs(new) do
    if old[key] ~= value then
      differing[#differing + 1] = key
      add_change(changes, 'f.', key, value)
    end
  end
  for key in pairs(old) do
    if new[key] == nil then
      differing[#differing + 1] = key
      add_change(changes, 'f.', key, false)
    end
  end
  local pos = keep_columns(columns, index_row, row, placed, changes, new, labels or '{}', lost)
  if pos then
    set[n + 1], set[n + 2], n = 'pos', pos, n + 2
  end
  if before == facts then return end
  set[n + 1], set[n + 2] = 'facts', facts
  if before then
    local older = redis.call('HGET', row, 'fact_changes') or ''
    set[n + 3], set[n + 4] = 'fact_changes', with_change(older, now, differing, old, new)
  end
end
