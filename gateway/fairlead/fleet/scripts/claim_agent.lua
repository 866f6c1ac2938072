#!lua flags=allow-oom
-- KEYS: agent row, open, bound key, columns, index, cells. ARGV: lease, boot, conn, sid, facts, valid until ms, own gen to re-claim
-- ('' otherwise), '1' if a missing row has been lost, ms for which attempts of one boot are ordered,
-- thumbprint of the key that the agent has proved to hold ('' if none), labels of an agent without a row as JSON ('' if
-- none), when the certificate or JWT that names the agent was issued in s ('' for any other proof), '1' for a certificate,
-- session that the agent has stored ('' if none), '1' if a key with two holders is revoked, ms for which a link is not
-- replaced by another holder of its key, ms for which a notice of two holders is remembered, ms after which a notice that
-- nobody has told is given again, id of the agent's journal ('' if it has none), agent.
-- Returns {'ok', gen, now, previous lease, previous boot, previous gen, last move by a rebalance ms, '1' if that move led
-- to this claim, notice, open…} | {'older' | 'late' | 'lost' | 'key', gen} | {'cloned' | 'contested', gen, notice, ms}.
-- A notice is 'cloned' if the key was found to have two holders and this was not noticed before, or it is revoked now;
-- 'broken' if the session that was shown is out of date; otherwise ''. See decision 0051. The claim that has the key
-- revoked is answered alike when it is repeated, because whoever learns of it closes the link of the other holder.
-- `untold` says since when a notice waits for being told: the node that was given it may have died before that.
-- A re-claim succeeds unless the row holds another session with a newer generation, whatever else Redis may have lost.
-- If Redis had lost the row, the link of that session may still be the older one. A re-claim keeps its generation
-- unless it needs a newer one: among several links that claim again after a loss, the one that was claimed last has the
-- newest generation, regardless of the order in which they claim again. A claim that was overtaken never succeeds: an
-- older attempt of the same boot is refused, and so is a claim that arrives after its validity, because a server that
-- was frozen executes calls that its clients gave up long before. Attempts are ordered only for some time after a
-- claim: an attempt that is still waiting was made before that claim, and an attempt number that is too high, by a
-- defect or on purpose, must not exclude an agent until it restarts. A move by a rebalance is forgotten when the node
-- where the agent was afterwards told it to leave because that node stopped. A link that still has the lease when
-- another one claims has ended without a record: `unrecorded` names it until its node records the end, and for good if
-- that node is dead.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local row = redis.call('HMGET', KEYS[1], 'gen', 'boot', 'conn', 'lease', 'sid', 'up', 'moved', 'drained',
  'chain', 'cloned', 'facts', 'pos', 'labels', 'labels_lost', 'untold', 'journal')
local gen, own = tonumber(row[1]) or 0, tonumber(ARGV[7])
if now > tonumber(ARGV[6]) then return {'late', string.format('%.0f', gen)} end
-- A link that claims again has proved its key before. A binding that Redis has lost is written again. `KEY@ISSUED` binds
-- to the key of a certificate, until one that was issued later brings another key; `@ISSUED` is an id that was released,
-- which goes to the next enrolment, or to a certificate or JWT that was issued later.
local bound
local again = row[15] and now - (tonumber(row[15]) or 0) > tonumber(ARGV[18])
if not own then
  local issued, certified = tonumber(ARGV[12]), ARGV[13] == '1'
  bound = redis.call('GET', KEYS[3])
  local here = row[9] == 'revoked by ' .. ARGV[4] or again and string.sub(row[9] or '', 1, 11) == 'revoked by '
  if ARGV[10] ~= '' and bound == 'revoked ' .. ARGV[10] and here then
    if again then redis.call('HSET', KEYS[1], 'untold', string.format('%.0f', now)) end
    return {'cloned', string.format('%.0f', gen), 'cloned', '0'}
  end
  local key, since = string.match(bound or '', '^([%w_-]*)@(%d+)$')
  local later = key and issued and issued > tonumber(since) and (key == '' or certified)
  if bound and (key or bound) ~= ARGV[10] and not later then return {'key', string.format('%.0f', gen)} end
  if ARGV[10] ~= '' and (later or not bound) then
    redis.call('SET', KEYS[3], ARGV[10] .. (certified and '@' .. ARGV[12] or ''))
  end
end
local conn, ahead = tonumber(row[3]) or 0, false
if row[2] == ARGV[2] then
  local recent = now - (tonumber(row[6]) or 0) < tonumber(ARGV[9])
  if conn > tonumber(ARGV[3]) and (own or recent) then return {'older', string.format('%.0f', gen)} end
  ahead = conn < tonumber(ARGV[3])
end
-- The sessions that one holder of the key may show: the one that it was given last (`sid`), and the one that it showed
-- when it was given that (`acked`), because it may have crashed before it stored the newer one. A session that is out of
-- date, such as that of a backup, begins a second line, and the pair of the first line is kept in `chain` (`d1`, `d2`). Who
-- shows one of these later has gone on with the first line: the key has two holders.
local chain, notice, cloned = nil, '', tonumber(row[10])
if not own and ARGV[10] ~= '' then
  local key, shown, given = string.sub(ARGV[10], 1, 16), ARGV[14], row[5] or ''
  if shown == '' then shown = '-' end
  if given == '' then given = '-' end
  local of, acked, d1, d2 = string.match(row[9] or '', '^(%S+) (%S+) (%S+) (%S+)$')
  local two, same = false, shown == given or shown == acked and row[2] == ARGV[2]
  if of ~= key then
    acked, d1, d2, cloned = shown, '-', '-', nil
  elseif shown == given then
    acked = shown
  elseif shown ~= acked then
    two = shown ~= '-' and (shown == d1 or shown == d2)
    acked, d1, d2, notice = shown, acked, given, 'broken'
  end
  if cloned and now - cloned > tonumber(ARGV[17]) then cloned = nil end
  if two then
    notice = cloned and not again and '' or 'cloned'
    cloned = now
    redis.call('HSET', KEYS[1], 'cloned', string.format('%.0f', now))
  elseif cloned and again then
    notice = 'cloned'
  end
  if notice == 'cloned' then redis.call('HSET', KEYS[1], 'untold', string.format('%.0f', now)) end
  if two then
    if ARGV[15] == '1' then
      redis.call('HSET', KEYS[1], 'chain', 'revoked by ' .. ARGV[4])
      redis.call('SET', KEYS[3], 'revoked ' .. (bound or ARGV[10]))
      return {'cloned', string.format('%.0f', gen), 'cloned', '0'}
    end
  end
  local left = (tonumber(row[6]) or 0) + tonumber(ARGV[16]) - now
  if cloned and left > 0 and (row[4] or '') ~= '' and not same then
    return {'contested', string.format('%.0f', gen), notice, string.format('%.0f', left)}
  end
  chain = key .. ' ' .. acked .. ' ' .. d1 .. ' ' .. d2
end
local new = math.max(gen, now - 1) + 1
if own then
  local same = row[5] == ARGV[4]
  if gen > own and not same and not ahead then return {'lost', string.format('%.0f', gen)} end
  if gen <= own or same then new = math.max(gen, own) end
end
local moved = tonumber(row[7]) or 0
local landed = moved > 0 and moved >= (tonumber(row[6]) or 0)
if moved > 0 and not landed and (row[4] or '') == '' and row[8] == '1' then
  redis.call('HDEL', KEYS[1], 'moved')
  moved = 0
end
local set = {'lease', ARGV[1], 'gen', string.format('%.0f', new), 'boot', ARGV[2], 'conn', ARGV[3],
  'sid', ARGV[4], 'up', string.format('%.0f', now), 'seen', string.format('%.0f', now), 'drained', '0'}
local function put(field, value) set[#set + 1], set[#set + 2] = field, value end
if chain then put('chain', chain) end
if ARGV[19] ~= '' then
  put('journal', ARGV[19])
elseif row[16] then
  redis.call('HDEL', KEYS[1], 'journal')
end
if chain and row[10] and not cloned then redis.call('HDEL', KEYS[1], 'cloned', 'untold') end
if (row[4] or '') ~= '' and row[5] ~= ARGV[4] then
  put('unrecorded', row[4] .. ' ' .. row[5])
  put('close', '0')
  put('reason', '')
end
local labels, lost = row[13], row[14]
if not row[1] and ARGV[11] ~= '' then
  labels = ARGV[11]
  put('labels', labels)
end
if not row[1] and ARGV[8] == '1' then
  lost = string.format('%.0f', now)
  put('labels_lost', lost)
end
-- Most agents come back with the facts that they had, and their facts and columns stay as they are.
if row[11] ~= ARGV[5] or string.match(row[12] or '', '^%d+') ~= redis.pcall('HGET', KEYS[4], 'gen') then
-- The functions are made here, because a claim that needs none of them should not pay for them.
--include columns
--include facts
  local older = row[11] and row[11] ~= ARGV[5] and redis.call('HGET', KEYS[1], 'fact_changes')
  local differing, all = difference(row[11], ARGV[5])
  keep_facts(KEYS[1], KEYS[4], KEYS[6], set, now, row[11], ARGV[5], differing, all, older, row[12], labels, lost)
end
redis.call('HSET', KEYS[1], unpack(set))
redis.call('ZADD', KEYS[5], 0, ARGV[20])
return {'ok', string.format('%.0f', new), string.format('%.0f', now), row[4] or '', row[2] or '',
  string.format('%.0f', gen), string.format('%.0f', moved), landed and '1' or '', notice,
  unpack(redis.call('HKEYS', KEYS[2]))}
