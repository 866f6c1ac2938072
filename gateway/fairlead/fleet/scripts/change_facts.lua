#!lua flags=allow-oom
-- KEYS: agent row, columns. ARGV: the session that has told the facts, the facts as JSON.
-- Returns 1, or 0 if another session has the agent, or none.
local row = redis.call('HMGET', KEYS[1], 'sid', 'lease', 'facts', 'pos', 'labels', 'labels_lost')
if row[1] ~= ARGV[1] or row[2] == '' then return 0 end
if row[3] == ARGV[2] then return 1 end
local t, set = redis.call('TIME'), {}
--include columns
--include facts
keep_facts(KEYS[1], KEYS[2], set, t[1] * 1000 + math.floor(t[2] / 1000), row[3], ARGV[2], row[4], row[5], row[6])
redis.call('HSET', KEYS[1], unpack(set))
return 1
