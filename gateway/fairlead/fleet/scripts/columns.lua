-- Functions of the scripts that write rows of agents, which keep the columns of the agent's shard in step with its row.
-- The hash `fl1:columns:{s}` has these fields:
--   gen     which columns these are, the microsecond in which they began: the field `pos` of a row is GEN.P, so a position
--           in columns that are gone is none
--   ready   since when every row of the shard is in the columns (ms); without it, they are incomplete
--   next    the number of positions; `free` is the first free one ('' if none is)
--   @P      the agent at position P, or `>` and the next free position
--   f+, l+  the number of columns of facts and of labels; f! and l! exist once a key was refused a column
--   NAME    a column: its slot, and then its codes, for each value \1 VALUE \0 CODE, a code being one byte from 1 to 254
--   NAME#   the two slots of hashes of values without a code: one has their first bytes, the other their second ones
--   slots   how many slots there are; `spare` are those of columns that were removed, which are empty, and `spare#` those of
--           their hashes, which are not: the cell of a hash counts only where the column has 255
--   room    how many positions each slot has room for
-- NAME is f.KEY for a fact, l.KEY for a label, t for the tenant, and x, whose only value says that labels were lost.
-- The string `fl1:cells:{s}` has the cells of all columns, slot after slot: so a cell is written in its place, and a
-- column is read at once. It begins with `gen`: otherwise it does not have the cells of these columns. The cell of a
-- position is the code of the agent's value, 0 for none, 255 for one without a code. A slot has three digits.
local LEAST, CODES, OTHER, COLUMNS, LENGTH = 64, 254, 255, 64, 128
local BEGIN = 16 -- where the first slot begins
local TEXT = 8192 -- bytes of values after which a column takes no more: each new one writes them all again

-- Adds a value, false for none. What a selector cannot name has no column.
local function add_change(changes, kind, key, value)
  if #key > 64 or not string.find(key, '^%w[%w._/-]*$') then return end
  local n = #changes
  changes[n + 1], changes[n + 2] = kind .. key, value
end

-- The code of a value, and the column with it.
local function code_of(column, value)
  if #value > LENGTH or string.find(value, '[%z\1]') then return OTHER, column end
  local _, last = string.find(column, '\1' .. value .. '\0', 1, true)
  if last then return string.byte(column, last + 1), column end
  local used = #column > 3 and string.byte(column, #column) or 0
  if used >= CODES or #column > TEXT then return OTHER, column end
  return used + 1, column .. '\1' .. value .. '\0' .. string.char(used + 1)
end

-- Makes room for more positions, a quarter more than are needed: all cells are copied, once for each growth by a quarter.
-- What the string begins with is copied too, because it says whose cells these are.
local function make_room(columns, cells, needed, room, slots)
  local found, grown = redis.call('GET', cells) or '', math.max(LEAST, math.floor(needed * 5 / 4))
  local parts = {string.sub(found, 1, BEGIN), string.rep('\0', BEGIN - #found)}
  for slot = 0, slots - 1 do
    local first, n = BEGIN + slot * room, #parts
    local part = string.sub(found, first + 1, first + room)
    parts[n + 1], parts[n + 2] = part, string.rep('\0', grown - #part)
  end
  redis.call('SET', cells, table.concat(parts))
  redis.call('HSET', columns, 'room', grown)
end

-- Removes a column that has become empty, so that another key may have one. Where keys were refused it stays: without it
-- nobody could tell that no agent has a value, and all columns are built again within a day.
local function remove_if_empty(columns, cells, name, room)
  local kind = string.sub(name, 1, 1)
  local head = redis.call('HMGET', columns, kind .. '+', kind .. '!', name, name .. '#', 'spare', 'spare#')
  if head[2] or not head[3] then return end
  local slot = string.sub(head[3], 1, 3)
  local first = BEGIN + slot * room
  if redis.call('BITPOS', cells, 1, first, first + room - 1) >= 0 then return end
  redis.call('HDEL', columns, name, name .. '#')
  redis.call('HSET', columns, kind .. '+', head[1] - 1, 'spare', slot .. (head[5] or ''))
  if head[4] then redis.call('HSET', columns, 'spare#', head[4] .. (head[6] or '')) end
end

-- Adds what columns say of a position to `set`, fields and values of the hash, and writes them all in one call, and the
-- cells in another. `changes` are names of columns, each followed by its value, false for none. Returns false, and
-- writes nothing, if these columns are not `gen`.
local function write_cells(columns, cells, gen, pos, changes, set)
  local asked = {'gen', 'room'}
  for i = 1, #changes, 2 do asked[#asked + 1] = changes[i] end
  local found, heads, written, emptied = redis.call('HMGET', columns, unpack(asked)), nil, {}, {}
  if found[1] ~= gen then return false end
  local room, first = tonumber(found[2]), BEGIN + pos
  local function put(field, value)
    local n = #set
    set[n + 1], set[n + 2] = field, value
  end
  local function write(slot, byte)
    local n = #written
    written[n + 1], written[n + 2], written[n + 3], written[n + 4] = 'SET', 'u8', 8 * (first + slot * room), byte
  end
  -- A slot of the list at `i` of heads, 6 for `spare` and 7 for `spare#`, or else one more.
  local function new_slot(i)
    heads = heads or redis.call('HMGET', columns, 'f+', 'l+', 'f!', 'l!', 'slots', 'spare', 'spare#')
    local spare, count = heads[i] or '', tonumber(heads[5]) or 0
    if spare ~= '' then
      heads[i] = string.sub(spare, 4)
      put(i == 6 and 'spare' or 'spare#', heads[i])
      return string.sub(spare, 1, 3)
    end
    heads[5] = count + 1
    put('slots', heads[5])
    return string.format('%03d', count)
  end
  -- A new column; nil if the key is refused.
  local function new_column(name)
    local kind = string.sub(name, 1, 1)
    heads = heads or redis.call('HMGET', columns, 'f+', 'l+', 'f!', 'l!', 'slots', 'spare', 'spare#')
    if kind == 'f' or kind == 'l' then
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
    return new_slot(6)
  end
  for i = 1, #changes, 2 do
    local name, value, column = changes[i], changes[i + 1], found[(i + 5) / 2]
    local known, code = column, 0
    if value and not column then column = new_column(name) end
    if column then
      if value then code, column = code_of(column, value) end
      if column ~= known then put(name, column) end
      write(string.sub(column, 1, 3), code)
      if code == OTHER then
        local slots, hash = redis.call('HGET', columns, name .. '#'), redis.sha1hex(value)
        if not slots then
          slots = new_slot(7) .. new_slot(7)
          put(name .. '#', slots)
        end
        write(string.sub(slots, 1, 3), tonumber(string.sub(hash, 1, 2), 16))
        write(string.sub(slots, 4, 6), tonumber(string.sub(hash, 3, 4), 16))
      elseif code == 0 and string.find(name, '.', 1, true) then
        emptied[#emptied + 1] = name
      end
    end
  end
  if #written > 0 then redis.call('BITFIELD', cells, unpack(written)) end
  if #set > 0 then redis.call('HSET', columns, unpack(set)) end
  for i = 1, #emptied do remove_if_empty(columns, cells, emptied[i], room) end
  return true
end

-- The two parts of the field `pos` of a row, if it has one.
local function position_of(placed)
  local gen, pos = string.match(placed or '', '^(%d+)%.(%d+)$')
  return gen, tonumber(pos)
end

-- Takes a position for an agent. Returns GEN and P, and what is to be set for it.
local function place(columns, cells, agent)
  local head = redis.call('HMGET', columns, 'gen', 'free', 'next', 'room', 'slots')
  local gen, pos = head[1], head[2]
  if not gen then
    local t = redis.call('TIME')
    gen = string.format('%.0f', t[1] * 1000000 + t[2])
    redis.call('HSET', columns, 'gen', gen)
    redis.call('SET', cells, gen)
  end
  if pos and pos ~= '' then
    return gen, pos, {'free', string.sub(redis.call('HGET', columns, '@' .. pos) or '>', 2), '@' .. pos, agent}
  end
  pos = head[3] or '0'
  local room = tonumber(head[4]) or 0
  if pos + 0 >= room then make_room(columns, cells, pos + 1, room, tonumber(head[5]) or 0) end
  return gen, pos, {'next', string.format('%.0f', pos + 1), '@' .. pos, agent}
end

-- Brings the columns in step with the row of an agent. `placed` is its field `pos`, `changes` are those of its facts,
-- `facts` are all that it has, as a table or as JSON, and `labels` is JSON. Returns its new `pos` if it was in none of these columns.
local function index_row(columns, cells, row, placed, changes, facts, labels, lost)
  local gen, pos = position_of(placed)
  if gen and write_cells(columns, cells, gen, pos, changes, {}) then return end
  local agent, set = string.match(row, '}:(.*)$'), nil
  changes = {'t', string.match(agent, '^/([^/]*)/') or '', 'x', lost and '1' or false}
  for key, value in pairs(cjson.decode(labels)) do add_change(changes, 'l.', key, value) end
  if type(facts) == 'string' then facts = cjson.decode(facts) end
  for key, value in pairs(facts) do add_change(changes, 'f.', key, value) end
  gen, pos, set = place(columns, cells, agent)
  write_cells(columns, cells, gen, tonumber(pos), changes, set)
  return gen .. '.' .. pos
end

-- Removes an agent, of whose row these are the fields.
local function remove_row(columns, cells, placed, facts, labels)
  local gen, pos = position_of(placed)
  if not gen then return end
  local changes = {'t', false, 'x', false}
  for key in pairs(cjson.decode(facts or '{}')) do add_change(changes, 'f.', key, false) end
  for key in pairs(cjson.decode(labels or '{}')) do add_change(changes, 'l.', key, false) end
  local free = redis.call('HGET', columns, 'free') or ''
  write_cells(columns, cells, gen, pos, changes, {'@' .. pos, '>' .. free, 'free', pos})
end

-- Calls a function that writes columns. One that fails costs the agent nothing: the columns are removed, and lists read
-- all rows of the shard until they are built again.
local function keep_columns(columns, cells, write, ...)
  local done, result = pcall(write, columns, cells, ...)
  if done then return result end
  redis.pcall('UNLINK', columns, cells)
end
