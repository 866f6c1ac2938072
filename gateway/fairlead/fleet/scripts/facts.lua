-- Functions of the scripts that write what an agent says of itself: its facts, their last changes and their columns. They
-- come after those of columns.lua.

-- What differs between two texts of facts: for each fact its key, its value before and its value now, false for none.
-- Returns the table of all facts too.
local function difference(before, facts)
  local read, old = pcall(cjson.decode, before or '{}')
  if not read or type(old) ~= 'table' then old = {} end
  local new, differing = cjson.decode(facts), {}
  local n = 0
  for key, value in pairs(new) do
    if old[key] ~= value then
      differing[n + 1], differing[n + 2], differing[n + 3], n = key, old[key] or false, value, n + 3
    end
  end
  for key, value in pairs(old) do
    if new[key] == nil then differing[n + 1], differing[n + 2], differing[n + 3], n = key, value, false, n + 3 end
  end
  return differing, new
end

-- The last changes of facts with one more, a line `ms LEFT {"KEY": ["before", "after"]}` before the older ones; LEFT counts
-- those for which the line has no room.
local function with_change(older, now, differing)
  local changed, size, left = {}, 0, 0
  for i = 1, #differing, 3 do
    local key, old, new = differing[i], differing[i + 1], differing[i + 2]
    local length = #key + #(old or '') + #(new or '')
    if size + length > 512 then
      left = left + 1
    else
      size = size + length
      changed[key] = {old or cjson.null, new or cjson.null}
    end
  end
  local lines = {string.format('%.0f %d ', now, left) .. cjson.encode(changed)}
  for line in string.gmatch(older, '[^\n]+') do
    if #lines == 5 then break end
    lines[#lines + 1] = line
  end
  return table.concat(lines, '\n')
end

-- Writes other facts of an agent into the columns, and adds to `set` what its row is to have. `before` is what it had,
-- `differing` and `all` are their `difference`, `older` the changes before this one. `all` may be the text of the facts.
-- The same facts in another order are no change.
local function keep_facts(row, columns, cells, set, now, before, facts, differing, all, older, placed, labels, lost)
  local changes, n = {}, #set
  for i = 1, #differing, 3 do add_change(changes, 'f.', differing[i], differing[i + 2]) end
  local pos = keep_columns(columns, cells, index_row, row, placed, changes, all, labels or '{}', lost)
  if pos then
    set[n + 1], set[n + 2], n = 'pos', pos, n + 2
  end
  if before == facts then return end
  set[n + 1], set[n + 2] = 'facts', facts
  if before and #differing > 0 then set[n + 3], set[n + 4] = 'fact_changes', with_change(older or '', now, differing) end
end
