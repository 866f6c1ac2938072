-- Shared by the scripts of {id}: a target's row is one field `t:<agent>` of the command's hash,
-- state|gen|next|attempt|memory. The memory comes last, since it is the agent's own word and may hold anything.
-- Each call into the store costs a microsecond, so scripts read all they need with one HMGET and write with one HSET.
local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

local OVER = {ok = 1, failed = 1, timeout = 1, offline = 1, cancelled = 1, expired = 1}

local function parse_row(packed)
  local state, gen, next_n, attempt, memory = string.match(packed, '^(%a+)|(%d+)|(%d+)|(%d+)|(.*)$')
  return {state = state, gen = tonumber(gen), next = tonumber(next_n), attempt = tonumber(attempt), memory = memory}
end

local function pack_row(row)
  return string.format('%s|%.0f|%.0f|%.0f|', row.state, row.gen, row.next, row.attempt) .. row.memory
end

-- Terminal states are set once. `blob` is the end as the API shows it; `open` the targets that were open until now.
-- What else is to be written in the same step follows, as field, value …
local function finish_row(key, agent, row, state, blob, open, retention, ...)
  row.state = state
  redis.call('HSET', key, 't:' .. agent, pack_row(row), 'e:' .. agent, blob, 'open', open - 1, ...)
  if open == 1 then redis.call('PEXPIRE', key, retention) end
end
