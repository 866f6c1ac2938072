#!lua
--include row
-- KEYS: cmd, in. ARGV: agent, n, payload, '1' for the end, limit in bytes of all input.
-- Returns {'ok'} | {'gone'} | {'over', state} | {'gap', next} | {'full', bytes} | {'ended'}. Repeating is harmless.
local rec = redis.call('HMGET', KEYS[1], 't:' .. ARGV[1], 'in_next', 'in_bytes', 'in_end')
if not rec[1] then return {'gone'} end
local row = parse_row(rec[1])
if OVER[row.state] then return {'over', row.state} end
local next_n, bytes, n = tonumber(rec[2]) or 0, tonumber(rec[3]) or 0, tonumber(ARGV[2])
if n < next_n then return {'ok'} end
if n > next_n then return {'gap', next_n} end
if rec[4] then return {'ended'} end
if bytes + #ARGV[3] > tonumber(ARGV[5]) then return {'full', bytes} end
redis.call('XADD', KEYS[2], string.format('%.0f-0', n + 1), 'p', ARGV[3], 'e', ARGV[4])
redis.call('HSET', KEYS[1], 'in_next', n + 1, 'in_bytes', bytes + #ARGV[3])
if ARGV[4] == '1' then redis.call('HSET', KEYS[1], 'in_end', 1) end
redis.call('PEXPIRE', KEYS[2], redis.call('PTTL', KEYS[1]))
return {'ok'}
