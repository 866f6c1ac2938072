#!lua flags=allow-oom
-- KEYS: agent row, open. ARGV: command id, what went wrong as one line, how many such lines to keep.
-- Removes a command that has ended from the agent's open commands, and stores what went wrong with its time before the
-- older lines. The call may be repeated: only the one that finds the command still open stores the line.
-- Returns the lease that holds the agent, '' for none.
local open = redis.call('HDEL', KEYS[2], ARGV[1])
local row = redis.call('HMGET', KEYS[1], 'gen', 'lease', 'failures')
if not row[1] then return '' end
if open == 0 then return row[2] or '' end
local t = redis.call('TIME')
local lines = {string.format('%.0f ', t[1] * 1000 + math.floor(t[2] / 1000)) .. ARGV[2]}
for line in string.gmatch(row[3] or '', '[^\n]+') do
  if #lines == tonumber(ARGV[3]) then break end
  lines[#lines + 1] = line
end
redis.call('HSET', KEYS[1], 'failures', table.concat(lines, '\n'))
return row[2] or ''
