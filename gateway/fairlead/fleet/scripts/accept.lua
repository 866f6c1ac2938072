-- Functions of the scripts that accept commands.
local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- What all commands of one call share. The arguments are those of accept_command.lua. A caller that sets `accepted` to a
-- table adds what is there to the deadline queue itself.
local function new_terms(now, expires, retention, retry, retain, remembered, follower, payload, limit, due, results_limit,
  offer)
  -- A record that is never ended also lives as long as its Idempotency-Key; otherwise a repeated post would create it a
  -- second time.
  local left = math.max(tonumber(expires) - now, 0) + 60000
  local life = math.max(left + tonumber(retention), tonumber(remembered) - now)
  return {packed = table.concat({expires, retention, retry, retain, remembered}, '|'), expires = expires, left = left,
    life = string.format('%.0f', life), remembered = tonumber(remembered) > 0, follower = follower, payload = payload,
    limit = tonumber(limit), due = due, results_limit = results_limit, offer = offer == '1'}
end

-- Accepts a command: writes its record, adds it to the agent's open commands and to the deadline queue, all or nothing.
-- The keys are agent row, open, cmd, outcome, deadlines. Returns 'ok' | 'offered' | 'exists' and the agent row, whose
-- first nine fields are those that replies have, or 'unknown', or 'full' and the number of open commands. With `unknown`
-- it is accepted although the agent has no row.
-- A command that is offered counts as sent from now on, for the time number 0, to the process that the agent's row names:
-- the node that has that link may deliver it without asking again. See decision 0060.
-- Accepting a command twice creates it once; with an Idempotency-Key also if the first record is already gone.
-- Adding to `open` and reading the lease is one atomic step, and so is claiming an agent and reading `open`. Whichever
-- of accept and claim comes second sees the effect of the first, so no command is lost between two nodes.
local function accept(keys, id, agent, about, all, unknown)
  local row = redis.call('HMGET', keys[1], 'lease', 'gen', 'boot', 'conn', 'sid', 'up', 'seen', 'close', 'drained',
    'journal')
  if redis.call('EXISTS', keys[3]) == 1 or all.remembered and redis.call('EXISTS', keys[4]) == 1 then
    return 'exists', row
  end
  if not row[2] and not unknown then return 'unknown' end
  local count = redis.call('HLEN', keys[2])
  if count >= all.limit then return 'full', count end
  -- For the fields, see record.lua.
  local word, target = 'ok', 'queued|0|0|0|'
  if all.offer and (row[1] or '') ~= '' then
    word, target = 'offered', 'sent|' .. row[2] .. '|0|0|' .. (row[10] or row[3] or '')
  end
  redis.call('HSET', keys[3], 't:' .. agent, target, 'sum', '1|0|0|0', 'terms', all.packed, 'w', all.follower,
    'about', about, 'payload', all.payload)
  if all.results_limit ~= '' then redis.call('HSET', keys[3], 'results_limit', all.results_limit) end
  redis.call('PEXPIRE', keys[3], all.life)
  redis.call('HSET', keys[2], id, all.expires)
  if count == 0 then redis.call('PEXPIRE', keys[2], all.left) else redis.call('PEXPIRE', keys[2], all.left, 'GT') end
  if all.accepted then
    all.accepted[#all.accepted + 1], all.accepted[#all.accepted + 2] = all.due, id .. ' ' .. agent
  else
    redis.call('ZADD', keys[5], all.due, id .. ' ' .. agent)
  end
  return word, row
end
