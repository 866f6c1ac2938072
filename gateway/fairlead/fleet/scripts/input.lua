#!lua
--include row
-- KEYS: cmd, in. ARGV: agent, n, payload, '1' for the end, limit in bytes of all input.
-- Returns {'ok'} | {'gone'} | {'over', state} | {'gap', next} | {'full', bytes} | {'ended'}. Repeating is harmless.
local row = read_row(KEYS[1], ARGV[1])
if not row then return {'gone'} end
if OVER[row.state] then return {'over', row.state} end
local got = redis.call('HMGET', KEYS[1], 'in_next', 'in_bytes', 'in_end')
local next_n, bytes, n = tonumber(got[1]) or 0, tonumber(got[2]) or 0, tonumber(ARGV[2])
if n < next_n then return {'ok'} end
if n > next_n then return {'gap', next_n} end
if got[3] then return {'ended'} end
if bytes + #ARGV[3] > tonumber(ARGV[5]) then return {'full', bytes} end
redis.call('XADD', KEYS[2], string.format('%.0f-0', n + 1), 'p', ARGV[3], 'e', ARGV[4])
redis.call('HSET', KEYS[1], 'in_next', n + 1, 'in_bytes', bytes + #ARGV[3])
if ARGV[4] == '1' then redis.call('HSET', KEYS[1], 'in_end', 1) end
redis.call('PEXPIRE', KEYS[2], redis.call('PTTL', KEYS[1]))
return {'ok'}
