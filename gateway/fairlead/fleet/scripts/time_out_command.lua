#!lua
--include record
-- KEYS: cmd, out, in, outcome. ARGV: agent, grace ms, end blob for a deadline that has passed.
-- What a target whose time has come needs: one that the agent has had, and whose deadline has passed by the grace, ends
-- here as `timeout`; of any other the caller is told all that it decides by.
-- Returns {'gone'} | {'over', state, followers} | {'ended', followers, about} | {'open', field, value …} of the record but its payload.
local rec = redis.call('HMGET', KEYS[1], 't:' .. ARGV[1], 'sum', 'terms', 'w', 'about', 'in', 'cancel')
if not rec[1] then return {'gone'} end
local row = parse_row(rec[1])
if OVER[row.state] then return {'over', row.state, rec[4]} end
local expires = parse_terms(rec[3])
if row.state ~= 'queued' and now_ms() >= expires + tonumber(ARGV[2]) then
  finish_row(KEYS, ARGV[1], row, 'timeout', ARGV[3], parse_sum(rec[2]), rec[3])
  return {'ended', rec[4], rec[5]}
end
local open = {'open', 't:' .. ARGV[1], rec[1], 'sum', rec[2], 'terms', rec[3], 'about', rec[5]}
if rec[6] then open[#open + 1], open[#open + 2] = 'in', rec[6] end
if rec[7] then open[#open + 1], open[#open + 2] = 'cancel', rec[7] end
return open
