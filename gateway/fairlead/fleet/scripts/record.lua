-- Shared by the scripts of {id}. The hash of a command holds few fields, each of them packed, because every field that
-- is looked up costs a walk over those before it:
--   t:<agent>  a target's row, state|gen|next|attempt|memory; the memory is the agent's own word and may hold anything
--   sum        open|seq|bytes|truncated: targets not yet over, entries and bytes of results, '1' when some were dropped
--   terms      expires|retention|retry|retain|remembered, which scripts need; `about` and `payload` hold what they only pass on
--   void       offset of the last entry of kind `retry`: the results before it are void and have been dropped
--   w          the followers' leases · e:<agent> how a target ended · in  next|bytes|end|digest of the last chunk · cancel  when
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

local function parse_sum(packed)
  local open, seq, bytes, truncated = string.match(packed, '^(%d+)|(%d+)|(%d+)|(%d)$')
  return {open = tonumber(open), seq = tonumber(seq), bytes = tonumber(bytes), truncated = truncated}
end

local function pack_sum(sum)
  return string.format('%.0f|%.0f|%.0f|%s', sum.open, sum.seq, sum.bytes, sum.truncated)
end

local function parse_terms(packed)
  local expires, retention, retry, retain, remembered = string.match(packed, '^(%d+)|(%d+)|(%a+)|(%a+)|(%d+)$')
  return tonumber(expires), tonumber(retention), retry, retain, tonumber(remembered)
end

-- Terminal states are set once. `blob` is the end as the API shows it. With the last target all keys of the command
-- (cmd, out, in) have `retention` left, whatever life they had before; `out` is there when it ever had an entry. Of a
-- command that was posted under an Idempotency-Key the outcome stays until `remembered`, when the key goes: a repeated post must not run it again.
local function finish_row(keys, agent, row, state, blob, sum, terms)
  row.state = state
  sum.open = sum.open - 1
  redis.call('HSET', keys[1], 't:' .. agent, pack_row(row), 'sum', pack_sum(sum), 'e:' .. agent, blob)
  if sum.open > 0 then return end
  local _, retention, _, _, remembered = parse_terms(terms)
  redis.call('PEXPIRE', keys[1], retention)
  if sum.seq > 0 then redis.call('PEXPIRE', keys[2], retention) end
  redis.call('PEXPIRE', keys[3], retention)
  if remembered == 0 then return end
  local now = now_ms()
  if remembered - now > retention then
    redis.call('SET', keys[4], string.format('%s %.0f', state, now), 'PX', string.format('%.0f', remembered - now))
  end
end
