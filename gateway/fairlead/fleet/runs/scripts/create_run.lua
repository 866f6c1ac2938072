#!lua
-- KEYS: run, agents, states. ARGV: owner, ms for which it owns the run, valid until ms, terms, payload, the counts,
-- number of targets, life ms, then blobs of agent ids.
-- Returns {'ok', gen, until} | {'exists'} | {'late'}. The run is `running`, and all its targets are waiting.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
if now > tonumber(ARGV[3]) then return {'late'} end
if redis.call('EXISTS', KEYS[1]) == 1 then return {'exists'} end
local till = string.format('%.0f', now + tonumber(ARGV[2]))
redis.call('HSET', KEYS[1], 'state', 'running', 'owner', ARGV[1], 'gen', 1, 'until', till, 'seq', 0, 'wish', '',
  'ended', 0, 'reason', '', 'w', '', 'terms', ARGV[4], 'counts', ARGV[6], 'targets', ARGV[7], 'payload', ARGV[5])
redis.call('SET', KEYS[3], string.rep('w', tonumber(ARGV[7])))
for i = 9, #ARGV do redis.call('RPUSH', KEYS[2], ARGV[i]) end
for i = 1, 3 do redis.call('PEXPIRE', KEYS[i], ARGV[8]) end
return {'ok', 1, till}
