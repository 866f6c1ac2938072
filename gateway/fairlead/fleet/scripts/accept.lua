-- How the scripts that accept commands begin. ARGV[1] to ARGV[11] are what all commands of one call share: `terms` (see
-- record.lua), expires ms, until when a record that is never ended lives ms, and until when the agent's open commands do
-- if none comes after it ms (both if it is accepted before it expires), when the command sweeper checks them first ms,
-- valid until ms, follower, payload, open limit, the bytes of results above which they are dropped soon after the end
-- ('' for no limit), '1' to offer them.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if now > tonumber(ARGV[6]) then return {'late'} end
local record_until, open_until, late = ARGV[3], ARGV[4], now - tonumber(ARGV[2])
if late > 0 then
  record_until, open_until = string.format('%.0f', record_until + late), string.format('%.0f', open_until + late)
end

-- Accepts a command: writes its record, adds it to the agent's open commands and to the deadline queue, all or nothing.
-- The keys are agent row, open, cmd, deadlines, outcome, the last for a command with an Idempotency-Key alone. A caller
-- that passes the table `due` adds what is there to the deadline queue itself. Returns 'offered' and what its reply has
-- of the agent row | 'ok' | 'exists' | 'unknown', or 'full' and the number of open commands. With `unknown` it is
-- accepted although the agent has no row.
-- A command that is offered counts as sent from now on, for the time number 0, to the process that the agent's row names:
-- the node that has that link may deliver it without asking again. See decision 0060.
-- Accepting a command twice creates it once; with an Idempotency-Key also if the first record is already gone.
-- Adding to `open` and reading the lease is one atomic step, and so is claiming an agent and reading `open`. Whichever
-- of accept and claim comes second sees the effect of the first, so no command is lost between two nodes.
local function accept(keys, id, agent, about, unknown, due)
  local row = redis.call('HMGET', keys[1], 'lease', 'gen', 'up', 'seen', 'sid', 'journal', 'boot')
  if redis.call('EXISTS', keys[3]) == 1 or keys[5] and redis.call('EXISTS', keys[5]) == 1 then return 'exists' end
  if not row[2] and not unknown then return 'unknown' end
  local count = redis.call('HLEN', keys[2])
  if count >= tonumber(ARGV[9]) then return 'full', count end
  -- For the fields, see record.lua.
  local word, target = 'ok', 'queued|0|0|0|'
  if ARGV[11] == '1' and (row[1] or '') ~= '' then
    word, target = 'offered', 'sent|' .. row[2] .. '|0|0|' .. (row[6] or row[7] or '')
  end
  redis.call('HSET', keys[3], 't:' .. agent, target, 'sum', '1|0|0|0', 'terms', ARGV[1], 'w', ARGV[7], 'about', about,
    'payload', ARGV[8])
  if ARGV[10] ~= '' then redis.call('HSET', keys[3], 'results_limit', ARGV[10]) end
  redis.call('PEXPIREAT', keys[3], record_until)
  redis.call('HSET', keys[2], id, ARGV[2])
  if count == 0 then
    redis.call('PEXPIREAT', keys[2], open_until)
  else
    redis.call('PEXPIREAT', keys[2], open_until, 'GT')
  end
  if due then
    due[#due + 1], due[#due + 2] = ARGV[5], id .. ' ' .. agent
  else
    redis.call('ZADD', keys[4], ARGV[5], id .. ' ' .. agent)
  end
  return word, row
end

-- The reply to a command: {'offered', lease, gen, up, seen, sid} | {'ok' | 'exists', the nine fields of the agent row
-- that replies of claims and dispatches have…} | {'unknown'} | {'full', count}.
local function answer(key, word, found)
  if word == 'offered' then return {word, unpack(found, 1, 5)} end
  if word == 'full' then return {word, found} end
  if word == 'unknown' then return {word} end
  return {word, unpack(redis.call('HMGET', key, 'lease', 'gen', 'boot', 'conn', 'sid', 'up', 'seen', 'close', 'drained'))}
end
