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
local AT_ONCE = 8

-- Adds a value, false for none. What a selector cannot name has no column.
local function add_change(changes, kind, key, value)
  if #key > 64 or not string.find(key, '^%w[%w._/-]*$') then return end
  local n = #changes
  changes[n + 1], changes[n + 2] = kind .. key, value
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

-- The fields of some chunks of a column: those of its cells or, with the sign '#', those of its hashes.
local function chunks_of(name, sign, first, last)
  local fields = {}
  for chunk = first, last do fields[#fields + 1] = name .. sign .. chunk end
  return fields
end

-- Removes a column that has become empty, so that another key may have one. Where keys were refused it stays: without it
-- nobody could tell that no agent has a value, and all columns are built again within a day.
local function remove_if_empty(columns, name)
  local kind = string.sub(name, 1, 1)
  if kind ~= 'f' and kind ~= 'l' then return end
  local head = redis.call('HMGET', columns, kind .. '+', kind .. '!', 'next')
  if head[2] then return end
  local last = math.ceil(head[3] / CELLS) - 1
  for first = 0, last, AT_ONCE do  -- a common key is found in the first ones
    local fields = chunks_of(name, ':', first, math.min(first + AT_ONCE - 1, last))
    local found = redis.call('HMGET', columns, unpack(fields))
    for i = 1, #found do
      if found[i] and string.find(found[i], '%Z') then return end
    end
  end
  redis.call('HDEL', columns, name)
  for first = 0, last, AT_ONCE do
    local stop = math.min(first + AT_ONCE - 1, last)
    redis.call('HDEL', columns, unpack(chunks_of(name, ':', first, stop)))
    redis.call('HDEL', columns, unpack(chunks_of(name, '#', first, stop)))
  end
  redis.call('HSET', columns, kind .. '+', head[1] - 1)
end

-- Adds what columns say of a position to `set`, fields and values of the hash, and writes them all in one call. `changes`
-- are names of columns, each followed by its value, false for none. Returns false, and writes nothing, if these columns
-- are not `gen`.
local function write_cells(columns, gen, pos, changes, set)
  local at, asked = pos % CELLS, {'gen'}
  local chunk = tostring((pos - at) / CELLS)
  local suffix = ':' .. chunk
  for i = 1, #changes, 2 do
    asked[i + 1], asked[i + 2] = changes[i], changes[i] .. suffix
  end
  local found, heads, hashes, others, emptied = redis.call('HMGET', columns, unpack(asked)), nil, {}, {}, {}
  if found[1] ~= gen then return false end
  local function put(field, value)
    local n = #set
    set[n + 1], set[n + 2] = field, value
  end
  -- The codes of a new column; nil if the key is refused.
  local function new_column(name)
    local kind = string.sub(name, 1, 1)
    if kind == 'f' or kind == 'l' then
      heads = heads or redis.call('HMGET', columns, 'f+', 'l+', 'f!', 'l!')
      local i = kind == 'f' and 1 or 2
      if heads[i + 2] then return end
      local count = tonumber(heads[i]) or 0
      if count >= COLUMNS then
        heads[i + 2] = '1'
        put(kind .. '!', '1')
        return
      end
      heads[i] = count + 1
      put(kind .. '+', heads[i])
    end
    put(name, '')
    return ''
  end
  for i = 1, #changes, 2 do
    local name, value, codes = changes[i], changes[i + 1], found[i + 1]
    if value and not codes then codes = new_column(name) end
    if codes then
      local code, cells = 0, found[i + 2] or ''
      if value then
        local known = codes
        code, codes = code_of(codes, value)
        if codes ~= known then put(name, codes) end
      end
      if code == OTHER then
        local hash = redis.sha1hex(value)
        hashes[#hashes + 1] = string.char(tonumber(string.sub(hash, 1, 2), 16), tonumber(string.sub(hash, 3, 4), 16))
        others[#others + 1] = name .. '#' .. chunk
      end
      if code > 0 or at < #cells then
        cells = with_cell(cells, at, string.char(code))
        put(asked[i + 2], cells)
        if code == 0 and not string.find(cells, '%Z') then emptied[#emptied + 1] = name end
      end
    end
  end
  if #others > 0 then
    local before = redis.call('HMGET', columns, unpack(others))
    for i = 1, #others do put(others[i], with_cell(before[i] or '', 2 * at, hashes[i])) end
  end
  if #set > 0 then redis.call('HSET', columns, unpack(set)) end
  for i = 1, #emptied do remove_if_empty(columns, emptied[i]) end
  return true
end

-- The two parts of the field `pos` of a row, if it has one.
local function position_of(placed)
  local gen, pos = string.match(placed or '', '^(%d+)%.(%d+)$')
  return gen, tonumber(pos)
end

-- Takes a position for an agent. Returns GEN and P, and what is to be set for it.
local function place(columns, agent)
  local head = redis.call('HMGET', columns, 'gen', 'free', 'next')
  local gen, pos = head[1], head[2]
  if not gen then
    local t = redis.call('TIME')
    gen = string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000))
    redis.call('HSET', columns, 'gen', gen)
  end
  if pos and pos ~= '' then
    return gen, pos, {'free', string.sub(redis.call('HGET', columns, '@' .. pos) or '>', 2), '@' .. pos, agent}
  end
  pos = head[3] or '0'
  return gen, pos, {'next', string.format('%.0f', pos + 1), '@' .. pos, agent}
end

-- Brings the columns in step with the row of an agent. `placed` is its field `pos`, `changes` are those of its facts,
-- `facts` are all that it has, as a table or as JSON, and `labels` is JSON. Returns its new `pos` if it was in none of these columns.
local function index_row(columns, row, placed, changes, facts, labels, lost)
  local gen, pos = position_of(placed)
  if gen and write_cells(columns, gen, pos, changes, {}) then return end
  local agent, set = string.match(row, '}:(.*)$'), nil
  changes = {'t', string.match(agent, '^/([^/]*)/') or '', 'x', lost and '1' or false}
  for key, value in pairs(cjson.decode(labels)) do add_change(changes, 'l.', key, value) end
  if type(facts) == 'string' then facts = cjson.decode(facts) end
  for key, value in pairs(facts) do add_change(changes, 'f.', key, value) end
  gen, pos, set = place(columns, agent)
  write_cells(columns, gen, tonumber(pos), changes, set)
  return gen .. '.' .. pos
end

-- Removes an agent, of whose row these are the fields.
local function remove_row(columns, placed, facts, labels)
  local gen, pos = position_of(placed)
  if not gen then return end
  local changes = {'t', false, 'x', false}
  for key in pairs(cjson.decode(facts or '{}')) do add_change(changes, 'f.', key, false) end
  for key in pairs(cjson.decode(labels or '{}')) do add_change(changes, 'l.', key, false) end
  local free = redis.call('HGET', columns, 'free') or ''
  write_cells(columns, gen, pos, changes, {'@' .. pos, '>' .. free, 'free', pos})
end

-- Calls a function that writes columns. One that fails costs the agent nothing: the columns are removed, and lists read
-- all rows of the shard until they are built again.
local function keep_columns(columns, write, ...)
  local done, result = pcall(write, columns, ...)
  if done then return result end
  redis.pcall('UNLINK', columns)
end
