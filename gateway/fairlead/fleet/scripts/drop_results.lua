#!lua flags=allow-oom
-- KEYS: cmd, out, kept, kept_until, kept_bytes. ARGV: command agent bytes, as kept_results.lua returned it; the agent.
-- Drops the results of a command that has ended, and of a large end the payload; the record says so until it expires.
-- Returns 1 if they were dropped, 0 if they had been, or had expired with their record.
local MOST = 1024 -- bytes of an end that keeps its payload
if redis.call('ZREM', KEYS[3], ARGV[1]) == 0 then return 0 end
redis.call('ZREM', KEYS[4], ARGV[1])
if redis.call('EXISTS', KEYS[3]) == 0 then
  redis.call('DEL', KEYS[5])
else
  redis.call('DECRBY', KEYS[5], string.match(ARGV[1], '%d+$'))
end
local blob = redis.call('HGET', KEYS[1], 'e:' .. ARGV[2])
if not blob then return 0 end
redis.call('UNLINK', KEYS[2])
redis.call('HDEL', KEYS[1], 'few')
local t = redis.call('TIME')
redis.call('HSET', KEYS[1], 'dropped', string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000)))
-- The end is a map in MessagePack that has the payload first, if it has one, as binary data; cmsgpack cannot read that.
local first, name, kind, rest = string.match(blob, '^(.)(\167payload)([\196-\198])(.*)$')
if name and #blob > MOST then
  local digits = 2 ^ (string.byte(kind) - 196)
  local length = 0
  for i = 1, digits do length = length * 256 + string.byte(rest, i) end
  local others = string.char(string.byte(first) - 1) .. string.sub(rest, digits + length + 1)
  redis.call('HSET', KEYS[1], 'e:' .. ARGV[2], others)
end
return 1
