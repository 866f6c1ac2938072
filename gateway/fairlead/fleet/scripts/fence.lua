#!lua
--include row
-- KEYS: cmd. ARGV: agent, gen, boot, end blob for an outcome that cannot be known, end blob for expired.
-- The new owner of an agent takes over one of its open commands: from here on appends of older gens are refused.
-- Returns {'send' | 'have', next, attempt, ms left, cancel, method, payload, lane, traceparent}
--   'send': write the command to the link (again when the agent has not acked it)
--   'have': the same boot runs it: it goes on at chunk `next`
-- or {'gone' | 'over' | 'stale'} | {'ended', state, followers}.
local row = read_row(KEYS[1], ARGV[1])
if not row then return {'gone'} end
if OVER[row.state] then return {'over'} end
local gen = tonumber(ARGV[2])
if row.gen > gen then return {'stale'} end
local rec = redis.call('HMGET', KEYS[1], 'expires', 'cancel', 'method', 'payload', 'lane', 'traceparent')
local left = tonumber(rec[1]) - now_ms()
if row.state == 'queued' then
  if left <= 0 then
    finish_row(KEYS[1], ARGV[1], row, 'expired', ARGV[5])
    return {'ended', 'expired', followers(KEYS[1])}
  end
  move_row(KEYS[1], row, 'sent')
  row.boot = ARGV[3]
elseif row.boot ~= ARGV[3] then
  finish_row(KEYS[1], ARGV[1], row, 'failed', ARGV[4])
  return {'ended', 'failed', followers(KEYS[1])}
end
row.gen = gen
local kind = 'have'
if row.state == 'sent' then
  kind = 'send'
  row.attempt = row.attempt + 1
end
write_row(KEYS[1], ARGV[1], row)
return {kind, row.next, row.attempt, math.max(left, 0), rec[2] or '', rec[3], rec[4], rec[5], rec[6]}
