#!lua flags=allow-oom
--include record
-- KEYS: cmd, in. ARGV: agent, n, payload, '1' for the end, limit in bytes of all input, digest of the chunk.
-- Returns {'ok'} | {'gone'} | {'over', state} | {'gap', next} | {'full', bytes} | {'ended'} | {'other'}, where 'other'
-- means that chunk n is stored with different bytes. The call may be repeated. A repeated chunk is compared with the
-- stored one, and the last chunk always by its digest. Earlier chunks that the agent has consumed can no longer be
-- compared and count as equal.
local rec = redis.call('HMGET', KEYS[1], 't:' .. ARGV[1], 'in')
if not rec[1] then return {'gone'} end
local row = parse_row(rec[1])
if OVER[row.state] then return {'over', row.state} end
local next_n, bytes, ended, digest = string.match(rec[2] or '0|0|0|', '^(%d+)|(%d+)|(%d)|(%x*)$')
local n = tonumber(ARGV[2])
next_n, bytes = tonumber(next_n), tonumber(bytes)
if n < next_n then
  if n == next_n - 1 then return {digest == ARGV[6] and 'ok' or 'other'} end
  local entry_id = string.format('%.0f-0', n + 1)
  local held = redis.call('XRANGE', KEYS[2], entry_id, entry_id)[1]
  if held and (held[2][2] ~= ARGV[3] or held[2][4] ~= ARGV[4]) then return {'other'} end
  return {'ok'}
end
if n > next_n then return {'gap', next_n} end
if ended == '1' then return {'ended'} end
if bytes + #ARGV[3] > tonumber(ARGV[5]) then return {'full', bytes} end
redis.call('XADD', KEYS[2], string.format('%.0f-0', n + 1), 'p', ARGV[3], 'e', ARGV[4])
local sum = string.format('%.0f|%.0f|%s|%s', n + 1, bytes + #ARGV[3], ARGV[4] == '1' and '1' or '0', ARGV[6])
redis.call('HSET', KEYS[1], 'in', sum)
redis.call('PEXPIRE', KEYS[2], redis.call('PTTL', KEYS[1]))
return {'ok'}
