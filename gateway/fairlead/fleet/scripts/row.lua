-- Shared by the scripts of {id}: a target's row is one field `t:<agent>` of the command's hash,
-- state|gen|next|attempt|memory. The memory comes last, since it is the agent's own word and may hold anything.
local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

local OVER = {ok = 1, failed = 1, timeout = 1, offline = 1, cancelled = 1, expired = 1}

local function read_row(key, agent)
  local packed = redis.call('HGET', key, 't:' .. agent)
  if not packed then return nil end
  local state, gen, next_n, attempt, memory = string.match(packed, '^(%a+)|(%d+)|(%d+)|(%d+)|(.*)$')
  return {state = state, gen = tonumber(gen), next = tonumber(next_n), attempt = tonumber(attempt), memory = memory}
end

local function write_row(key, agent, row)
  redis.call('HSET', key, 't:' .. agent,
    string.format('%s|%.0f|%.0f|%.0f|', row.state, row.gen, row.next, row.attempt) .. row.memory)
end

-- Terminal states are set once. `blob` is the end as the API shows it.
local function finish_row(key, agent, row, state, blob)
  redis.call('HINCRBY', key, 'n:' .. row.state, -1)
  redis.call('HINCRBY', key, 'n:' .. state, 1)
  row.state = state
  write_row(key, agent, row)
  redis.call('HSET', key, 'e:' .. agent, blob)
  if redis.call('HINCRBY', key, 'open', -1) == 0 then
    redis.call('PEXPIRE', key, redis.call('HGET', key, 'retention'))
  end
end

local function move_row(key, row, state)
  redis.call('HINCRBY', key, 'n:' .. row.state, -1)
  redis.call('HINCRBY', key, 'n:' .. state, 1)
  row.state = state
end

local function followers(key)
  return redis.call('HGET', key, 'w') or ''
end
