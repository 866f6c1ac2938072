#!lua flags=allow-oom
-- KEYS: agent row, open, bound key. ARGV: lease, boot, conn, sid, facts, valid until ms, own gen to re-claim ('' otherwise),
-- '1' if a missing row has been lost, ms for which attempts of one boot are ordered,
-- thumbprint of the key that the agent has proved to hold ('' if none), labels of an agent without a row as JSON ('' if
-- none).
-- Returns {'ok', gen, now, previous lease, previous boot, previous gen, last move by a rebalance ms, '1' if that move led
-- to this claim, open…} | {'older' | 'late' | 'lost' | 'key', gen}.
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
local row = redis.call('HMGET', KEYS[1], 'gen', 'boot', 'conn', 'lease', 'sid', 'up', 'moved', 'drained')
local gen, own = tonumber(row[1]) or 0, tonumber(ARGV[7])
if now > tonumber(ARGV[6]) then return {'late', string.format('%.0f', gen)} end
-- A link that claims again has proved its key before. A binding that Redis has lost is written again; one that was
-- released is an empty string, and is left to the next enrolment.
if not own then
  local bound = redis.call('GET', KEYS[3])
  if bound and bound ~= ARGV[10] then return {'key', string.format('%.0f', gen)} end
  if not bound and ARGV[10] ~= '' then redis.call('SET', KEYS[3], ARGV[10]) end
end
local conn, ahead = tonumber(row[3]) or 0, false
if row[2] == ARGV[2] then
  local recent = now - (tonumber(row[6]) or 0) < tonumber(ARGV[9])
  if conn > tonumber(ARGV[3]) and (own or recent) then return {'older', string.format('%.0f', gen)} end
  ahead = conn < tonumber(ARGV[3])
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
redis.call('HSET', KEYS[1], 'lease', ARGV[1], 'gen', string.format('%.0f', new), 'boot', ARGV[2], 'conn', ARGV[3],
  'sid', ARGV[4], 'up', string.format('%.0f', now), 'seen', string.format('%.0f', now), 'drained', '0',
  'facts', ARGV[5])
if (row[4] or '') ~= '' and row[5] ~= ARGV[4] then
  redis.call('HSET', KEYS[1], 'unrecorded', row[4] .. ' ' .. row[5], 'close', '0', 'reason', '')
end
if not row[1] and ARGV[11] ~= '' then redis.call('HSET', KEYS[1], 'labels', ARGV[11]) end
if not row[1] and ARGV[8] == '1' then redis.call('HSET', KEYS[1], 'labels_lost', string.format('%.0f', now)) end
return {'ok', string.format('%.0f', new), string.format('%.0f', now), row[4] or '', row[2] or '',
  string.format('%.0f', gen), string.format('%.0f', moved), landed and '1' or '',
  unpack(redis.call('HKEYS', KEYS[2]))}
