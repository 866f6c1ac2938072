-- Functions of the scripts that write rows of agents, which keep the columns of the agent's shard in step with its row.
-- The hash `fl1:columns:{s}` has these fields:
--   gen     which columns these are: the field `pos` of a row is GEN.P, so a position in columns that are gone is none
--   ready   since when every row of the shard is in the columns (ms); without it, they are incomplete
--   next    the number of positions; `free` is the first free one ('' if none is)
--   @P      the agent at position P, or `>` and the next free position
--   f+, l+  the number of columns of facts and of labels; f! and l! exist once a key was refused a column
--   NAME    the codes of a column: for each value \1 VALUE \0 CODE, a code being one byte from 1 to 254
--   NAME:C  its cells from position C * CELLS on: the code of the agent's value, 0 for none, 255 for one without a code
--   NAME#C  for these: a hash of the value, two bytes for each position
-- NAME is f.KEY for a fact, l.KEY for a label, t for the tenant, and x, whose only value says that labels were lost.
local CELLS, CODES, OTHER, COLUMNS, LENGTH = 112, 254, 255, 64, 128

-- What a selector cannot name has no column.
local function add_change(changes, kind, key, value)
  if #key <= 64 and string.find(key, '^%w[%w._/-]*$') then changes[#changes + 1] = {kind .. '.' .. key, value} end
end

-- Adds what differs between two tables of facts or of labels.
local function add_changes(changes, kind, old, new)
  for key, value in pairs(new) do
    if old[key] ~= value then add_change(changes, kind, key, value) end
  end
  for key in pairs(old) do
    if new[key] == nil then add_change(changes, kind, key, false) end
  end
end

local function with_cell(cells, at, cell)
  if #cells < at then cells = cells .. string.rep('\0', at - #cells) end
  return string.sub(cells, 1, at) .. cell .. string.sub(cells, at + #cell + 1)
end

-- The code of a value, and the codes with it.
local function code_of(codes, value)
  if #value > LENGTH or string.find(value, '[%z\1]') then return OTHER, codes end
  local _, last = string.find(codes, '\1' .. value .. '\0', 1, true)
  if last then return string.byte(codes, last + 1), codes end
  local used = string.byte(codes, #codes) or 0
  if used >= CODES then return OTHER, codes end
  return used + 1, codes .. '\1' .. value .. '\0' .. string.char(used + 1)
end

-- Writes the cells of one position. A change is the name of a column and the value, false for none.
local function write_cells(columns, pos, changes)
  local chunk, at, asked = math.floor(pos / CELLS), pos % CELLS, {'f+', 'l+', 'f!', 'l!'}
  for i = 1, #changes do
    asked[2 * i + 3], asked[2 * i + 4] = changes[i][1], changes[i][1] .. ':' .. chunk
  end
  local found, set = redis.call('HMGET', columns, unpack(asked)), {}
  local counts, full = {f = tonumber(found[1]) or 0, l = tonumber(found[2]) or 0}, {f = found[3], l = found[4]}
  local function put(field, value) set[#set + 1], set[#set + 2] = field, value end
  for i = 1, #changes do
    local name, value, codes = changes[i][1], changes[i][2], found[2 * i + 3]
    local kind = string.sub(name, 1, 1)
    if value and not codes and not full[kind] then
      if (counts[kind] or 0) >= COLUMNS then
        full[kind] = '1'
        put(kind .. '!', '1')
      else
        codes = ''
        put(name, codes)
        if counts[kind] then
          counts[kind] = counts[kind] + 1
          put(kind .. '+', counts[kind])
        end
      end
    end
    if codes then
      local code, cells = 0, found[2 * i + 4] or ''
      if value then
        local known = codes
        code, codes = code_of(codes, value)
        if codes ~= known then put(name, codes) end
      end
      if code == OTHER then
        local hash, field = redis.sha1hex(value), name .. '#' .. chunk
        local bytes = string.char(tonumber(string.sub(hash, 1, 2), 16), tonumber(string.sub(hash, 3, 4), 16))
        put(field, with_cell(redis.call('HGET', columns, field) or '', 2 * at, bytes))
      end
      if code > 0 or at < #cells then put(name .. ':' .. chunk, with_cell(cells, at, string.char(code))) end
    end
  end
  if #set > 0 then redis.call('HSET', columns, unpack(set)) end
end

-- The position of a row whose field `pos` is `placed`, if it is one in these columns.
local function position_of(columns, placed)
  local gen, pos = string.match(placed or '', '^(%d+)%.(%d+)$')
  if gen and redis.call('HGET', columns, 'gen') == gen then return tonumber(pos) end
end

-- Gives an agent a position, and notes it in its row.
local function place(columns, row, agent)
  local head = redis.call('HMGET', columns, 'gen', 'free', 'next')
  local gen, pos = head[1], head[2]
  if not gen then
    local t = redis.call('TIME')
    gen = string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000))
    redis.call('HSET', columns, 'gen', gen)
  end
  if pos and pos ~= '' then
    redis.call('HSET', columns, 'free', string.sub(redis.call('HGET', columns, '@' .. pos) or '>', 2), '@' .. pos, agent)
  else
    pos = head[3] or '0'
    redis.call('HSET', columns, 'next', string.format('%.0f', pos + 1), '@' .. pos, agent)
  end
  redis.call('HSET', row, 'pos', gen .. '.' .. pos)
  return tonumber(pos)
end

-- Brings the columns in step with the row of an agent. `placed` is its field `pos`, `before` the table of facts that it
-- had, `facts` that of those that it has, and `labels` is JSON.
local function index_row(columns, row, placed, before, facts, labels, lost)
  local changes, pos = {}, position_of(columns, placed)
  if not pos then
    local agent = string.match(row, '}:(.*)$')
    pos, before = place(columns, row, agent), {}
    changes = {{'t', string.match(agent, '^/([^/]*)/') or ''}, {'x', lost and '1'}}
    add_changes(changes, 'l', {}, cjson.decode(labels))
  end
  add_changes(changes, 'f', before, facts)
  write_cells(columns, pos, changes)
end

-- Removes an agent, of whose row these are the fields.
local function remove_row(columns, placed, facts, labels)
  local pos = position_of(columns, placed)
  if not pos then return end
  local changes = {{'t', false}, {'x', false}}
  add_changes(changes, 'f', cjson.decode(facts or '{}'), {})
  add_changes(changes, 'l', cjson.decode(labels or '{}'), {})
  write_cells(columns, pos, changes)
  redis.call('HSET', columns, '@' .. pos, '>' .. (redis.call('HGET', columns, 'free') or ''), 'free', pos)
end

-- Calls a function that writes columns. One that fails costs the agent nothing: the columns are removed, and lists read
-- all rows of the shard until they are built again.
local function keep_columns(columns, write, ...)
  if not pcall(write, columns, ...) then redis.pcall('UNLINK', columns) end
end
