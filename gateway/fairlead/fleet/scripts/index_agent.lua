#!lua
--include columns
-- KEYS: agent row, columns, cells.
-- Writes the agent into the columns of its shard, unless it is there. Returns 1 if it was missing, otherwise 0.
local row = redis.call('HMGET', KEYS[1], 'gen', 'pos', 'facts', 'labels', 'labels_lost')
if not row[1] or position_of(row[2]) == (redis.call('HGET', KEYS[2], 'gen') or '') then return 0 end
redis.call('HSET', KEYS[1], 'pos', index_row(KEYS[2], KEYS[3], KEYS[1], nil, nil, cjson.decode(row[3] or '{}'), row[4] or '{}', row[5]))
return 1
