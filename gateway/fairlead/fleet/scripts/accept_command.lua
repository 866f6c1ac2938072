#!lua
-- KEYS: agent row, open, cmd, outcome, deadlines. ARGV: id, agent, expires ms, retention ms, retry, retain, until when an
-- Idempotency-Key is bound to the command ms (0 if it has none), valid until ms, follower, about, payload, open limit,
-- when the command sweeper checks it first ms, '1' to accept it although the agent has no row, the bytes of
-- results above which they are dropped soon after the end ('' for no limit), '1' to offer it.
-- Accepts a command: writes its record, adds it to the agent's open commands and to the deadline queue, all or nothing.
-- Returns {'ok' | 'offered' | 'exists', the first nine fields of the agent row…} | {'unknown'} | {'late'} |
-- {'full', count}.
-- A command that is offered counts as sent from now on, for the time number 0, to the process that the agent's row names:
-- the node that has that link may deliver it without asking again. See decision 0060.
-- Accepting a command twice creates it once; with an Idempotency-Key also if the first record is already gone.
-- Adding to `open` and reading the lease is one atomic step, and so is claiming an agent and reading `open`. Whichever
-- of accept and claim comes second sees the effect of the first, so no command is lost between two nodes.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
if now > tonumber(ARGV[8]) then return {'late'} end
local row = redis.call('HMGET', KEYS[1], 'lease', 'gen', 'boot', 'conn', 'sid', 'up', 'seen', 'close', 'drained',
  'journal')
local remembered = tonumber(ARGV[7])
if redis.call('EXISTS', KEYS[3]) == 1 or remembered > 0 and redis.call('EXISTS', KEYS[4]) == 1 then
  return {'exists', unpack(row, 1, 9)}
end
if not row[2] and ARGV[14] == '' then return {'unknown'} end
local count = redis.call('HLEN', KEYS[2])
if count >= tonumber(ARGV[12]) then return {'full', count} end
-- For the fields, see record.lua, whose functions this script does not need.
local word, target = 'ok', 'queued|0|0|0|'
if ARGV[16] == '1' and (row[1] or '') ~= '' then
  word, target = 'offered', 'sent|' .. row[2] .. '|0|0|' .. (row[10] or row[3] or '')
end
redis.call('HSET', KEYS[3], 't:' .. ARGV[2], target, 'sum', '1|0|0|0',
  'terms', table.concat(ARGV, '|', 3, 7), 'w', ARGV[9], 'about', ARGV[10], 'payload', ARGV[11])
if ARGV[15] ~= '' then redis.call('HSET', KEYS[3], 'results_limit', ARGV[15]) end
-- A record that is never ended also lives as long as its Idempotency-Key; otherwise a repeated post would create it a
-- second time.
local left = math.max(tonumber(ARGV[3]) - now, 0) + 60000
local life = math.max(left + tonumber(ARGV[4]), remembered - now)
redis.call('PEXPIRE', KEYS[3], string.format('%.0f', life))
redis.call('HSET', KEYS[2], ARGV[1], ARGV[3])
if count == 0 then redis.call('PEXPIRE', KEYS[2], left) else redis.call('PEXPIRE', KEYS[2], left, 'GT') end
redis.call('ZADD', KEYS[5], ARGV[13], ARGV[1] .. ' ' .. ARGV[2])
return {word, unpack(row, 1, 9)}
