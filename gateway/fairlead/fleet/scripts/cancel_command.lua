#!lua flags=allow-oom
--include record
-- KEYS: those of finish_row in record.lua. ARGV: agent, end blob for a command that is cancelled before
-- it was sent, or '' to ask only, because the command was sent although the record may not say so.
-- Returns {'ended', followers} | {'asked'} | {'gone'} | {'over', state}.
local rec = redis.call('HMGET', KEYS[1], 't:' .. ARGV[1], 'sum', 'terms', 'w')
if not rec[1] then return {'gone'} end
local row = parse_row(rec[1])
if OVER[row.state] then return {'over', row.state} end
if row.state == 'queued' and ARGV[2] ~= '' then
  finish_row(KEYS, ARGV[1], row, 'cancelled', ARGV[2], parse_sum(rec[2]), rec[3], '')
  return {'ended', rec[4]}
end
redis.call('HSETNX', KEYS[1], 'cancel', string.format('%.0f', now_ms()))
return {'asked'}
