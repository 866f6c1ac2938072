#!lua
--include row
-- KEYS: cmd, out, in. ARGV: agent, gen, output limit in bytes, then per item either
--   'a' | 'c', n, kind, payload | 'e', total, state, end blob
-- Returns {status, next, state, followers, truncated} with status
--   'ok' all is stored · 'gone' | 'over' nothing more is wanted · 'fenced' another owner has it · 'gap' n > next.
-- Repeating it changes nothing: chunks before `next` are dropped. State and data move in one step.
local rec = redis.call('HMGET', KEYS[1], 't:' .. ARGV[1], 'seq', 'bytes', 'truncated', 'w', 'open', 'retention', 'in_next')
if not rec[1] then return {'gone', 0, '', '', 0} end
local row, followers = parse_row(rec[1]), rec[5] or ''
if OVER[row.state] then return {'over', row.next, row.state, followers, 0} end
if row.gen > tonumber(ARGV[2]) then return {'fenced', row.next, row.state, '', 0} end
row.gen = tonumber(ARGV[2]) -- an owner that has just claimed again and has not taken this command over yet
local limit, seq, bytes, truncated = tonumber(ARGV[3]), tonumber(rec[2]), tonumber(rec[3]), tonumber(rec[4]) or 0
local status, i, first = 'ok', 4, seq == 0
local ended, blob
while i <= #ARGV do
  local op = ARGV[i]
  if op == 'a' then
    i = i + 1
  elseif op == 'c' then
    local n = tonumber(ARGV[i + 1])
    if n > row.next then status = 'gap' break end
    if n == row.next then
      local payload = ARGV[i + 3]
      row.next = row.next + 1
      if bytes + #payload > limit then
        truncated = 1
      else
        seq = seq + 1
        bytes = bytes + #payload
        redis.call('XADD', KEYS[2], string.format('%.0f-0', seq), 'a', ARGV[1], 'n', n, 'k', ARGV[i + 2], 'p', payload)
      end
    end
    i = i + 4
  else
    if tonumber(ARGV[i + 1]) ~= row.next then status = 'gap' break end
    ended, blob = ARGV[i + 2], ARGV[i + 3]
    break
  end
end
if row.state == 'sent' then row.state = 'running' end
if ended then
  finish_row(KEYS[1], ARGV[1], row, ended, blob, tonumber(rec[6]), rec[7], 'seq', seq, 'bytes', bytes, 'truncated', truncated)
  local life = rec[6] == '1' and rec[7] or redis.call('PTTL', KEYS[1])
  if seq > 0 then redis.call('PEXPIRE', KEYS[2], life) end
  if rec[8] then redis.call('PEXPIRE', KEYS[3], life) end
else
  redis.call('HSET', KEYS[1], 't:' .. ARGV[1], pack_row(row), 'seq', seq, 'bytes', bytes, 'truncated', truncated)
  if first and seq > 0 then redis.call('PEXPIRE', KEYS[2], redis.call('PTTL', KEYS[1])) end
end
return {status, row.next, row.state, followers, truncated}
