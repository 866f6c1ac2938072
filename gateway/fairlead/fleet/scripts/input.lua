#!lua
--include row
-- KEYS: cmd, in. ARGV: agent, n, payload, '1' for the end, limit in bytes of all input.
-- Returns {'ok'} | {'gone'} | {'over', state} | {'gap', next} | {'full', bytes} | {'ended'}. Repeating is harmless.
local rec = redis.call('HMGET', KEYS[1], 't:' .. ARGV[1], 'in')
if not rec[1] then return {'gone'} end
local row = parse_row(rec[1])
if OVER[row.state] then return {'over', row.state} end
local next_n, bytes, ended = string.match(rec[2] or '0|0|0', '^(%d+)|(%d+)|(%d)$')
local n = tonumber(ARGV[2])
next_n, bytes = tonumber(next_n), tonumber(bytes)
if n < next_n then return {'ok'} end
if n > next_n then return {'gap', next_n} end
if ended == '1' then return {'ended'} end
if bytes + #ARGV[3] > tonumber(ARGV[5]) then return {'full', bytes} end
redis.call('XADD', KEYS[2], string.format('%.0f-0', n + 1), 'p', ARGV[3], 'e', ARGV[4])
redis.call('HSET', KEYS[1], 'in', string.format('%.0f|%.0f|%s', n + 1, bytes + #ARGV[3], ARGV[4] == '1' and '1' or '0'))
redis.call('PEXPIRE', KEYS[2], redis.call('PTTL', KEYS[1]))
return {'ok'}
