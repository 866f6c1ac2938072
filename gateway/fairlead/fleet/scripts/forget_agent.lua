#!lua flags=allow-oom
--include columns
-- KEYS: agent row, open, columns, index, cells. ARGV: seen before ms, the lease that the caller considers dead ('' for none),
-- agent.
-- Returns 1 if the agent was absent for that long and has been removed, or had no row; otherwise 0.
local row = redis.call('HMGET', KEYS[1], 'seen', 'lease', 'pos', 'facts', 'labels')
if not row[1] then
  redis.call('ZREM', KEYS[4], ARGV[3])
  return 1
end
if row[2] ~= ARGV[2] or tonumber(row[1]) >= tonumber(ARGV[1]) then return 0 end
keep_columns(KEYS[3], KEYS[5], remove_row, row[3], row[4], row[5])
redis.call('DEL', KEYS[1], KEYS[2])
redis.call('ZREM', KEYS[4], ARGV[3])
return 1
