#!lua flags=allow-oom
-- KEYS: run. ARGV: owner, ms for which it owns the run.
-- Makes `owner` the owner of a run whose owner has let its time pass.
-- Returns {'ok', gen, until, since when nobody has owned it} | {'owned', until} | {'ended'} | {'gone'}.
local row = redis.call('HMGET', KEYS[1], 'gen', 'until', 'ended')
if not row[1] then return {'gone'} end
if row[3] ~= '0' then return {'ended'} end
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
if now <= tonumber(row[2]) then return {'owned', row[2]} end
local gen, till = tonumber(row[1]) + 1, string.format('%.0f', now + tonumber(ARGV[2]))
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'gen', gen, 'until', till)
return {'ok', gen, till, row[2]}
