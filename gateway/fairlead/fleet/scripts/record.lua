-- Functions that the scripts of commands share. The hash of a command has few fields, most of them packed, because Redis
-- walks over all preceding fields to look up a field:
--   t:<agent>  a target's row, state|gen|next|attempt|memory; the agent sets the memory, which may hold anything. One
--              that was `sent` for the time 0 is offered: the node with the link `gen` may send it without asking
--   sum        open|seq|bytes|truncated: open targets, entries and bytes of results, '1' if results were dropped
--   terms      expires|retention|retry|retain|remembered: the values that scripts need
--   about      the metadata that scripts only pass on, like `payload`
--   void       offset of the last entry of kind `retry`: the results before it are void and have been removed
--   w          the leases of the followers
--   e:<agent>  how a target ended
--   few        all results of a command that has ended, if they are few: agent, then number, kind and payload of each,
--              packed. `out` does not exist then
--   in         next|bytes|end|digest of the last input chunk
--   cancel     when cancellation was requested (ms)
--   results_limit  bytes of results above which they are dropped soon after the end; absent for no limit
--   dropped    when the results were dropped after the end (ms); absent if they are kept
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

local known_terms, parsed_terms -- the last ones: those of many commands of one call are often the same

local function parse_terms(packed)
  if packed ~= known_terms then
    local expires, retention, retry, retain, remembered = string.match(packed, '^(%d+)|(%d+)|(%a+)|(%a+)|(%d+)$')
    known_terms, parsed_terms = packed, {tonumber(expires), tonumber(retention), retry, retain, tonumber(remembered)}
  end
  return unpack(parsed_terms)
end

-- Notes that the results of a command that has ended are kept, so that they are dropped once they have been kept for
-- long enough, or to make room (see drop_results.lua): in keys[8] by their age, in keys[9] by when they are due, and in
-- keys[10] their bytes. A command with more results than the limit of its method is due soon.
local KEPT_FROM = 1024 -- bytes: smaller results take no more than the record, which stays
local ENTRY_BYTES = 64 -- that Redis needs for each entry besides
local STREAM_BYTES = 4400 -- that Redis needs for the shortest stream
local SOON_DUE = 60000 -- ms: whoever follows the command has read its results by then

local function note_kept(keys, agent, retention, sum, end_bytes, few, limit)
  local bytes, stream = sum.bytes + end_bytes, sum.seq > 0 and not few
  if limit == nil then limit = redis.call('HGET', keys[1], 'results_limit') end
  limit = tonumber(limit or '')
  local over = limit and bytes > limit and (sum.seq > 0 or end_bytes > KEPT_FROM)
  if bytes <= KEPT_FROM and not stream and not over then return end
  local now, kept = now_ms(), over and math.min(SOON_DUE, retention) or retention
  bytes = bytes + sum.seq * ENTRY_BYTES
  if stream then bytes = math.max(bytes, STREAM_BYTES) end
  local member = string.format('%s %s %.0f', string.match(keys[1], '}:(.*)$'), agent, bytes)
  redis.call('ZADD', keys[8], now, member)
  redis.call('ZADD', keys[9], now + kept, member)
  redis.call('INCRBY', keys[10], string.format('%.0f', bytes))
end

-- Sets a terminal state, which is set only once. The keys are cmd, out, in, outcome, open, deadlines, the agent's row,
-- kept, kept_until, kept_bytes. `blob` is the end as the API shows it, and `code` that of its error, '' for none. When
-- the last target ends, the payload is removed, which nobody needs any more, and all keys of the command (cmd, out,
-- in) expire after `retention`, whatever their TTL was before; `out` exists only if there was ever an entry. The command is removed from the agent's open commands (keys[5]) and from the deadline queue (keys[6]), and a
-- failure is noted in the agent's row (keys[7]), unless these keys were not passed, because the caller does that later.
-- For a command that was posted with an Idempotency-Key, the outcome is kept until `remembered`, when the key expires,
-- because a repeated post must not run the command again. `few` are its results, packed, if there is no `out`,
-- `no_input` says that there is no `in`, and `limit` is its field `results_limit`, nil if that has to be read. With
-- `keys.ended` the caller removes the members that are added there from the deadline queue.
local KEPT_FAILURES = 5 -- enough to see whether a command always fails in the same way
local FAILED = {failed = 1, timeout = 1, offline = 1, expired = 1}

local function note_failure(key, line)
  local row = redis.call('HMGET', key, 'gen', 'failures')
  if not row[1] then return end
  local lines = {string.format('%.0f ', now_ms()) .. line}
  for before in string.gmatch(row[2] or '', '[^\n]+') do
    if #lines == KEPT_FAILURES then break end
    lines[#lines + 1] = before
  end
  redis.call('HSET', key, 'failures', table.concat(lines, '\n'))
end

-- answer.lua repeats the end of this function. A change of one is a change of both.
local function finish_row(keys, agent, row, state, blob, sum, terms, code, few, no_input, limit)
  row.state = state
  sum.open = sum.open - 1
  if few then
    redis.call('HSET', keys[1], 't:' .. agent, pack_row(row), 'sum', pack_sum(sum), 'e:' .. agent, blob, 'payload', '',
      'few', few)
  else
    redis.call('HSET', keys[1], 't:' .. agent, pack_row(row), 'sum', pack_sum(sum), 'e:' .. agent, blob, 'payload', '')
  end
  if sum.open > 0 then return end
  if keys[5] then
    local id = string.match(keys[1], '}:(.*)$')
    redis.call('HDEL', keys[5], id)
    if keys.ended then
      keys.ended[#keys.ended + 1] = id .. ' ' .. agent
    else
      redis.call('ZREM', keys[6], id .. ' ' .. agent)
    end
    if FAILED[state] then
      note_failure(keys[7], string.format('command %s ended as %s%s', id, state, code == '' and '' or ': ' .. code))
    end
  end
  local _, retention, _, _, remembered = parse_terms(terms)
  redis.call('PEXPIRE', keys[1], retention)
  if sum.seq > 0 and not few then redis.call('PEXPIRE', keys[2], retention) end
  if not no_input then redis.call('PEXPIRE', keys[3], retention) end
  note_kept(keys, agent, retention, sum, #blob, few, limit)
  if remembered == 0 then return end
  local now = now_ms()
  if remembered - now > retention then
    redis.call('SET', keys[4], string.format('%s %.0f', state, now), 'PX', string.format('%.0f', remembered - now))
  end
end
