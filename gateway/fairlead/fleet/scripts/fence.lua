#!lua
--include row
-- KEYS: cmd. ARGV: agent, gen, boot, end blob for an outcome that cannot be known, end blob for expired,
-- '1' to deliver, '' to take over only.
-- The owner of an agent makes itself the owner of an open command: from here on appends of older gens are refused.
-- Returns {'gone' | 'over' | 'stale'} | {'ended', state, followers} | {'queued'} (taking over: it was never sent)
-- or {'sent' | 'running', next, attempt, ms left, cancel, method, payload, lane, traceparent}
--   'sent': to be written to the link, again if it was before, because the agent has not acked it
--   'running': the same boot runs it: it goes on at chunk `next`
-- Method and what follows come only when delivering.
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
  if ARGV[6] == '' then return {'queued'} end
  move_row(KEYS[1], row, 'sent')
  row.boot = ARGV[3]
elseif row.boot ~= ARGV[3] then
  finish_row(KEYS[1], ARGV[1], row, 'failed', ARGV[4])
  return {'ended', 'failed', followers(KEYS[1])}
end
row.gen = gen
if ARGV[6] == '' then
  write_row(KEYS[1], ARGV[1], row)
  return {row.state, row.next, row.attempt, math.max(left, 0), rec[2] or ''}
end
if row.state == 'sent' then row.attempt = row.attempt + 1 end
write_row(KEYS[1], ARGV[1], row)
return {row.state, row.next, row.attempt, math.max(left, 0), rec[2] or '', rec[3], rec[4], rec[5], rec[6]}
