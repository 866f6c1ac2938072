#!lua flags=allow-oom
-- KEYS: agent row, open. ARGV: command id, expires ms, open limit, valid until ms.
-- Returns {'ok', the first nine fields of the agent row…} | {'unknown'} | {'late'} | {'full', count}.
-- Adding to `open` and reading the lease is one atomic step, and so is claiming an agent and reading `open`. Whichever
-- of dispatch and claim comes second sees the effect of the first, so no command is lost between two nodes.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
if now > tonumber(ARGV[4]) then return {'late'} end
local row = redis.call('HMGET', KEYS[1], 'lease', 'gen', 'boot', 'conn', 'sid', 'up', 'seen', 'close', 'drained')
if not row[2] then return {'unknown'} end
local count = redis.call('HLEN', KEYS[2])
if count >= tonumber(ARGV[3]) and redis.call('HEXISTS', KEYS[2], ARGV[1]) == 0 then return {'full', count} end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
local life = tonumber(ARGV[2]) - now + 60000
if count == 0 then redis.call('PEXPIRE', KEYS[2], life) else redis.call('PEXPIRE', KEYS[2], life, 'GT') end
return {'ok', unpack(row, 1, 9)}
