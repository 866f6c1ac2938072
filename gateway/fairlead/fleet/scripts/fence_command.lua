#!lua flags=allow-oom
--include record
-- KEYS: those of finish_row in record.lua. ARGV: agent, gen, memory, end blob for an unknown
-- outcome, end blob for expired, '1' to deliver, '' to take over only.
-- The owner of an agent becomes the owner of an open command: from now on, appends of older generations are refused.
-- Returns {'gone' | 'over' | 'stale' | 'offered'} | {'ended', state, followers} | {'queued'} (when taking over: to be
-- delivered)
-- or {'sent' | 'running', next, attempt, ms left, cancel, has input, retry, about, payload}
--   'sent': it is to be written to the link, even if it was written before, because the agent has not acknowledged it
--   'running': the agent has the command, which continues at chunk `next`
--   'offered': another process was offered it, and its node gives it back, or the sweeper says that it was sent
-- `retry` and the values after it are returned only when delivering.
-- A command that was sent to another memory has an unknown outcome. It ends with that outcome, unless it was posted as
-- safe to run again, took no input (which is gone) and has not been sent too often. In that case it is queued
-- again, its chunks count from 0 again, and an entry of kind `retry` tells readers that all results before it are void.
-- The void results are removed from the store, and its bytes and the mark `truncated` are reset, so that the next run
-- has the whole output limit.
local TIMES = 5 -- a command that crashes its agent each time must not do so forever
local agent, gen, deliver = ARGV[1], tonumber(ARGV[2]), ARGV[6] ~= ''
local rec
if deliver then
  rec = redis.call('HMGET', KEYS[1], 't:' .. agent, 'sum', 'terms', 'w', 'in', 'cancel', 'about', 'payload')
else
  rec = redis.call('HMGET', KEYS[1], 't:' .. agent, 'sum', 'terms', 'w', 'in', 'cancel')
end
if not rec[1] then return {'gone'} end
local row, has_input, cancelled = parse_row(rec[1]), rec[5] and 1 or 0, rec[6] or ''
if OVER[row.state] then return {'over'} end
if row.gen > gen then return {'stale'} end
if row.state == 'sent' and row.attempt == 0 then
  if row.gen ~= gen and row.memory == ARGV[3] then row.attempt = 1 end -- it may have been sent on an older link
  if row.gen == gen and deliver then row.state = 'queued' end -- who was offered it has not sent it, and asks now
end
row.gen = gen
local sum, expires, _, retry = parse_sum(rec[2]), parse_terms(rec[3])
local left = expires - now_ms()

local function finish(state, blob, code)
  finish_row(KEYS, agent, row, state, blob, sum, rec[3], code)
  return {'ended', state, rec[4]}
end

if row.state ~= 'queued' and row.memory ~= ARGV[3] then
  if row.state == 'sent' and row.attempt == 0 then return {'offered'} end
  if retry ~= 'safe' or cancelled ~= '' or has_input == 1 or row.attempt >= TIMES then
    return finish('failed', ARGV[4], 'outcome_unknown')
  end
  row.state, row.next = 'queued', 0
  sum.seq, sum.bytes, sum.truncated = sum.seq + 1, 0, '0'
  redis.call('HSET', KEYS[1], 'sum', pack_sum(sum), 'void', string.format('%.0f', sum.seq - 1))
  local entry = string.format('%.0f-0', sum.seq)
  redis.call('XADD', KEYS[2], entry, 'a', agent, 'n', row.attempt, 'k', 'retry', 'p', '')
  redis.call('XTRIM', KEYS[2], 'MINID', entry)
  redis.call('PEXPIRE', KEYS[2], redis.call('PTTL', KEYS[1]))
end
if row.state == 'queued' and left <= 0 then
  if row.attempt == 0 then return finish('expired', ARGV[5], 'expired') end
  return finish('failed', ARGV[4], 'outcome_unknown') -- it was sent before and may have run
end
if deliver then
  if row.state == 'queued' then row.state, row.memory = 'sent', ARGV[3] end
  if row.state == 'sent' then row.attempt = row.attempt + 1 end
end
redis.call('HSET', KEYS[1], 't:' .. agent, pack_row(row))
if row.state == 'queued' then return {'queued'} end
left = math.max(left, 0)
if not deliver then return {row.state, row.next, row.attempt, left, cancelled, has_input} end
return {row.state, row.next, row.attempt, left, cancelled, has_input, retry, rec[7], rec[8]}
