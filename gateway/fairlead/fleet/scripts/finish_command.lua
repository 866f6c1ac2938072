#!lua flags=allow-oom
--include record
-- KEYS: those of finish_row in record.lua. ARGV: agent, state to set, end blob, the state that the target
-- must have ('' for any), code of the error ('' for none), '1' if some of its results are lost.
-- Returns {'ok', followers} | {'gone'} | {'over', state} | {'kept', state}.
local rec = redis.call('HMGET', KEYS[1], 't:' .. ARGV[1], 'sum', 'terms', 'w')
if not rec[1] then return {'gone'} end
local row = parse_row(rec[1])
if OVER[row.state] then return {'over', row.state} end
if ARGV[4] ~= '' and row.state ~= ARGV[4] then return {'kept', row.state} end
local sum = parse_sum(rec[2])
if ARGV[6] == '1' then sum.truncated = '1' end
finish_row(KEYS, ARGV[1], row, ARGV[2], ARGV[3], sum, rec[3], ARGV[5])
return {'ok', rec[4]}
