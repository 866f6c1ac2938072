#!lua
--include row
-- KEYS: cmd, out, in. ARGV: agent, gen, output limit in bytes, then per item either
--   'a' | 'c', n, kind, payload | 'e', total, state, end blob
-- Returns {status, next, state, followers, truncated} with status
--   'ok' all is stored · 'gone' | 'over' nothing more is wanted · 'fenced' another owner has it · 'gap' n > next.
-- Repeating it changes nothing: chunks before `next` are dropped. State and data move in one step.
local row = read_row(KEYS[1], ARGV[1])
if not row then return {'gone', 0, '', '', 0} end
if OVER[row.state] then return {'over', row.next, row.state, followers(KEYS[1]), 0} end
if row.gen > tonumber(ARGV[2]) then return {'fenced', row.next, row.state, '', 0} end
row.gen = tonumber(ARGV[2]) -- an owner that has just claimed again and has not taken this command over yet
local limit = tonumber(ARGV[3])
local tally = redis.call('HMGET', KEYS[1], 'seq', 'bytes', 'truncated')
local seq, bytes, truncated = tonumber(tally[1]), tonumber(tally[2]), tonumber(tally[3]) or 0
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
    i = i + 4
    break
  end
end
if row.state == 'sent' then move_row(KEYS[1], row, 'running') end
redis.call('HSET', KEYS[1], 'seq', seq, 'bytes', string.format('%.0f', bytes), 'truncated', truncated)
if ended then finish_row(KEYS[1], ARGV[1], row, ended, blob) else write_row(KEYS[1], ARGV[1], row) end
if ended or (first and seq > 0) then
  local life = redis.call('PTTL', KEYS[1])
  redis.call('PEXPIRE', KEYS[2], life)
  redis.call('PEXPIRE', KEYS[3], life)
end
return {status, row.next, row.state, followers(KEYS[1]), truncated}
