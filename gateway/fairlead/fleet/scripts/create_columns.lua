#!lua
-- KEYS: columns, cells. ARGV: ms for which columns that were full are kept.
-- Begins to build the columns of a shard that are incomplete, or that have refused keys for so long that others may be
-- more common by now. Returns which columns are to be built, or '' if they are ready.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local head = redis.call('HMGET', KEYS[1], 'gen', 'ready', 'f!', 'l!')
local whole = head[1] and redis.call('GETRANGE', KEYS[2], 0, #head[1] - 1) == head[1]
if whole and head[2] and (not (head[3] or head[4]) or now - tonumber(head[2]) < tonumber(ARGV[1])) then return '' end
if whole and not head[2] then return head[1] end
redis.call('UNLINK', KEYS[1])
local gen = string.format('%.0f', t[1] * 1000000 + t[2])
redis.call('HSET', KEYS[1], 'gen', gen)
redis.call('SET', KEYS[2], gen)
return gen
