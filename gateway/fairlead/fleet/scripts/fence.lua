#!lua
--include row
-- KEYS: cmd, out. ARGV: agent, gen, memory, end blob for an outcome that cannot be known, end blob for expired,
-- '1' to deliver, '' to take over only.
-- The owner of an agent makes itself the owner of an open command: from here on appends of older gens are refused.
-- Returns {'gone' | 'over' | 'stale'} | {'ended', state, followers} | {'queued'} (taking over: to be delivered)
-- or {'sent' | 'running', next, attempt, ms left, cancel, method, payload, lane, traceparent, retry}
--   'sent': to be written to the link, again if it was before, because the agent has not acked it
--   'running': the agent remembers it: it goes on at chunk `next`
-- Method and what follows come only when delivering.
-- A command that was sent to another memory has an outcome that nobody knows. It ends so, unless it was posted as safe
-- to run again, took no input (which is gone) and has not been sent too often: then it is queued anew, its chunks
-- count from 0 again, and an entry of kind `retry` tells readers that what stands before it is void.
local TIMES = 5 -- a command that kills its agent each time must not do so for ever
local row = read_row(KEYS[1], ARGV[1])
if not row then return {'gone'} end
if OVER[row.state] then return {'over'} end
local gen = tonumber(ARGV[2])
if row.gen > gen then return {'stale'} end
local rec = redis.call('HMGET', KEYS[1], 'expires', 'cancel', 'method', 'payload', 'lane', 'traceparent', 'retry')
local left = tonumber(rec[1]) - now_ms()
if row.state ~= 'queued' and row.memory ~= ARGV[3] then
  local safe = rec[7] == 'safe' and not rec[2] and row.attempt < TIMES
  if not safe or redis.call('HEXISTS', KEYS[1], 'in_next') == 1 then
    finish_row(KEYS[1], ARGV[1], row, 'failed', ARGV[4])
    return {'ended', 'failed', followers(KEYS[1])}
  end
  move_row(KEYS[1], row, 'queued')
  row.next = 0
  local seq = redis.call('HINCRBY', KEYS[1], 'seq', 1)
  redis.call('XADD', KEYS[2], string.format('%.0f-0', seq), 'a', ARGV[1], 'n', row.attempt, 'k', 'retry', 'p', '')
  redis.call('PEXPIRE', KEYS[2], redis.call('PTTL', KEYS[1]))
end
if row.state == 'queued' then
  if left <= 0 then
    local state = row.attempt == 0 and 'expired' or 'failed' -- one that was sent before may have run
    finish_row(KEYS[1], ARGV[1], row, state, row.attempt == 0 and ARGV[5] or ARGV[4])
    return {'ended', state, followers(KEYS[1])}
  end
  if ARGV[6] == '' then
    row.gen = gen
    write_row(KEYS[1], ARGV[1], row)
    return {'queued'}
  end
  move_row(KEYS[1], row, 'sent')
  row.memory = ARGV[3]
end
row.gen = gen
if ARGV[6] == '' then
  write_row(KEYS[1], ARGV[1], row)
  return {row.state, row.next, row.attempt, math.max(left, 0), rec[2] or ''}
end
if row.state == 'sent' then row.attempt = row.attempt + 1 end
write_row(KEYS[1], ARGV[1], row)
return {row.state, row.next, row.attempt, math.max(left, 0), rec[2] or '', rec[3], rec[4], rec[5], rec[6], rec[7] or ''}
