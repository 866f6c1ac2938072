#!lua flags=allow-oom
--include record
-- KEYS: those of finish_row in record.lua. ARGV: agent, gen, memory, attempt (0 if it is not known), end
-- blob for an unknown outcome.
-- A node says again after a failover that it had sent the command to the agent with this memory, because the step that
-- said so may be among what was lost: a record that says `queued` would let the command run a second time.
-- Returns {'ok', gen} (that agent has the command) | {'later'} (it was sent again since) | {'gone'} |
-- {'over', state, followers} | {'ended', followers}: it was sent to two memories, so its outcome is unknown.
local rec = redis.call('HMGET', KEYS[1], 't:' .. ARGV[1], 'sum', 'terms', 'w')
if not rec[1] then return {'gone'} end
local row, attempt = parse_row(rec[1]), math.max(tonumber(ARGV[4]), 1)
if OVER[row.state] then return {'over', row.state, rec[4]} end
if row.state ~= 'queued' and row.memory == ARGV[3] then
  if row.attempt == 0 then -- it is no longer an offer
    row.attempt = attempt
    redis.call('HSET', KEYS[1], 't:' .. ARGV[1], pack_row(row))
  end
  return {'ok', string.format('%.0f', row.gen)}
end
local _, _, retry = parse_terms(rec[3])
if row.state == 'queued' or row.state == 'sent' and row.attempt == 0 then -- an offer that ended before it was sent
  if row.attempt >= attempt then return {'later'} end
  row.state, row.memory, row.attempt, row.gen = 'sent', ARGV[3], attempt, math.max(row.gen, tonumber(ARGV[2]))
  redis.call('HSET', KEYS[1], 't:' .. ARGV[1], pack_row(row))
  return {'ok', string.format('%.0f', row.gen)}
end
-- With no generation, it was opened again by a node that knows how it ended (reopen_lost.lua).
if retry == 'safe' or row.attempt > attempt or row.gen == 0 then return {'later'} end
finish_row(KEYS, ARGV[1], row, 'failed', ARGV[5], parse_sum(rec[2]), rec[3], 'outcome_unknown')
return {'ended', rec[4]}
