#!lua
--include row
-- KEYS: cmd. ARGV: agent, end blob for cancelled before it was sent.
-- Returns {'ended', followers} | {'asked'} | {'gone'} | {'over', state}.
local row = read_row(KEYS[1], ARGV[1])
if not row then return {'gone'} end
if OVER[row.state] then return {'over', row.state} end
if row.state == 'queued' then
  finish_row(KEYS[1], ARGV[1], row, 'cancelled', ARGV[2])
  return {'ended', followers(KEYS[1])}
end
redis.call('HSETNX', KEYS[1], 'cancel', string.format('%.0f', now_ms()))
return {'asked'}
