#!lua flags=allow-oom
-- KEYS: agent row, columns, cells. ARGV: the session that has told the facts, the facts as JSON, what they were before as far as
-- that session knows, and for each fact that differs its key, its value before and its value now, '-' for none and
-- otherwise '+VALUE': no JSON is decoded here unless the row has other facts than the session knows.
-- Returns 1, or 0 if another session has the agent, or none.
local row = redis.call('HMGET', KEYS[1], 'sid', 'lease', 'facts', 'pos', 'labels', 'labels_lost', 'fact_changes')
if row[1] ~= ARGV[1] or row[2] == '' then return 0 end
if row[3] == ARGV[2] then return 1 end
local t, set = redis.call('TIME'), {}
--include columns
--include facts
local differing, all = {}, ARGV[2]
if row[3] == ARGV[3] then
  for i = 4, #ARGV, 3 do
    local n, old, new = i - 3, ARGV[i + 1], ARGV[i + 2]
    differing[n], differing[n + 1], differing[n + 2] = ARGV[i], old ~= '-' and string.sub(old, 2), new ~= '-' and string.sub(new, 2)
  end
else
  differing, all = difference(row[3], ARGV[2])
end
local now = t[1] * 1000 + math.floor(t[2] / 1000)
keep_facts(KEYS[1], KEYS[2], KEYS[3], set, now, row[3], ARGV[2], differing, all, row[7], row[4], row[5], row[6])
redis.call('HSET', KEYS[1], unpack(set))
return 1
