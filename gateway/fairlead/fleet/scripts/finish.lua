#!lua
--include row
-- KEYS: cmd. ARGV: agent, state to set, end blob, the only state to leave ('' for any).
-- Returns {'ok', followers} | {'gone'} | {'over', state} | {'kept', state}.
local row = read_row(KEYS[1], ARGV[1])
if not row then return {'gone'} end
if OVER[row.state] then return {'over', row.state} end
if ARGV[4] ~= '' and row.state ~= ARGV[4] then return {'kept', row.state} end
finish_row(KEYS[1], ARGV[1], row, ARGV[2], ARGV[3])
return {'ok', followers(KEYS[1])}
