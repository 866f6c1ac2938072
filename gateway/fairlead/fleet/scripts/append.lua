-- Stores what an agent has sent of a command: the steps args[first] to args[last], each of which is
--   'a' | 'c', n, kind, payload | 'e', total, state, end blob, code of the error ('' for none)
-- The keys are those of finish_row in record.lua.
-- Returns {status, next, state, followers, held, added, seq} with status
--   'ok' everything is stored · 'gone' | 'over' no more results are accepted · 'fenced' there is a newer owner ·
--   'gap' n > next.
-- `added` is how many results this call has stored, and `seq` the number of all results; -1 if they may not be passed on
-- without being read, because some were dropped or they are retained as a window.
-- `held` is the number of bytes in the store if results are retained as a window, otherwise 0: the output limit applies
-- instead. Repeating the call changes nothing, because chunks before `next` are dropped. State and data change in
-- one atomic step.
-- All results of most commands are few. When the command ends, they are in the record, and spare a stream, which takes
-- 4 KiB at least; those that came with the end were never in a stream.
local FEW_BYTES, FEW = 4096, 16
local WINDOW_ENTRIES = 524288 -- eight times as many as are held before credit is withheld (4 MiB, see receipts.py)
local function append(keys, agent, gen, limit, args, first, last)
  local rec = redis.call('HMGET', keys[1], 't:' .. agent, 'sum', 'terms', 'w', 'in', 'results_limit')
  if not rec[1] then return {'gone', 0, '', '', 0, 0, -1} end
  local row, followers = parse_row(rec[1]), rec[4]
  if row.gen > gen then return {'fenced', row.next, row.state, '', 0, 0, -1} end
  if OVER[row.state] then return {'over', row.next, row.state, followers, 0, 0, -1} end
  row.gen = gen -- the owner has just claimed the agent again and has not yet taken over this command
  local sum = parse_sum(rec[2])
  local _, _, _, retain = parse_terms(rec[3])
  local status, i, before = 'ok', first, sum.seq
  local few = before == 0 and retain == 'all' and {agent}
  local ended, blob, code
  local kept, most = sum.seq, math.max(limit / ENTRY_BYTES, 1024) -- 1024 for the least limit that may be set
  if retain == 'window' then most = WINDOW_ENTRIES end
  -- Those that were read, or that a later run has made void, are gone, but count in `seq`. A chunk has four arguments.
  if retain == 'window' or kept + (last - first + 1) / 4 > most then kept = redis.call('XLEN', keys[2]) end
  while i <= last do
    local op = args[i]
    if op == 'a' then
      i = i + 1
    elseif op == 'c' then
      local n = tonumber(args[i + 1])
      if n > row.next then status = 'gap' break end
      if n == row.next then
        local payload = args[i + 3]
        if retain == 'window' and kept >= most then status = 'gap' break end
        row.next = row.next + 1
        -- After the first dropped chunk, all further ones are dropped too: results after a gap must not seem contiguous.
        if retain == 'all' and (sum.truncated == '1' or sum.bytes + #payload > limit or kept >= most) then
          sum.truncated = '1'
        else
          sum.seq, kept = sum.seq + 1, kept + 1
          sum.bytes = sum.bytes + #payload
          if few then
            few[#few + 1], few[#few + 2], few[#few + 3] = args[i + 1], args[i + 2], payload
          else
            redis.call('XADD', keys[2], string.format('%.0f-0', sum.seq), 'a', agent, 'n', n, 'k', args[i + 2],
              'p', payload)
          end
        end
      end
      i = i + 4
    else
      if tonumber(args[i + 1]) ~= row.next then status = 'gap' break end
      ended, blob, code = args[i + 2], args[i + 3], args[i + 4]
      break
    end
  end
  -- This also applies to a row that is `queued` because Redis has lost its last writes: the command was sent, so the
  -- record must not say that it did not run.
  row.state, row.attempt = 'running', math.max(row.attempt, 1)
  if few and (not ended or #few == 1 or #few > 3 * FEW or sum.bytes > FEW_BYTES) then
    for k = 2, #few, 3 do
      redis.call('XADD', keys[2], string.format('%.0f-0', (k + 1) / 3), 'a', agent, 'n', few[k], 'k', few[k + 1],
        'p', few[k + 2])
    end
    few = nil
  end
  if ended and not few and retain == 'all' and sum.seq > 0 and sum.seq <= FEW and sum.bytes <= FEW_BYTES then
    local entries = redis.call('XRANGE', keys[2], '-', '+')
    if #entries == sum.seq then -- otherwise a later run has made some of them void
      few = {agent}
      for _, entry in ipairs(entries) do
        few[#few + 1], few[#few + 2], few[#few + 3] = entry[2][4], entry[2][6], entry[2][8]
      end
      redis.call('UNLINK', keys[2])
    end
  end
  if ended then
    finish_row(keys, agent, row, ended, blob, sum, rec[3], code, few and cmsgpack.pack(few), not rec[5],
      rec[6])
  else
    redis.call('HSET', keys[1], 't:' .. agent, pack_row(row), 'sum', pack_sum(sum))
  end
  if before == 0 and sum.seq > 0 and sum.open > 0 then redis.call('PEXPIRE', keys[2], redis.call('PTTL', keys[1])) end
  local seq = retain == 'all' and sum.truncated == '0' and sum.seq or -1
  local held = retain == 'window' and sum.bytes + kept * ENTRY_BYTES or 0
  return {status, row.next, row.state, followers, held, sum.seq - before, seq}
end
