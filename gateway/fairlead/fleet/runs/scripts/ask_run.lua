#!lua flags=allow-oom
-- KEYS: run. ARGV: pause, resume or cancel.
-- Leaves the wish for the run's owner. A cancel stays, whatever is asked for after it.
-- Returns {'ok', state, owner} | {'ended', state} | {'gone'}.
local row = redis.call('HMGET', KEYS[1], 'state', 'owner', 'ended', 'wish')
if not row[1] then return {'gone'} end
if row[3] ~= '0' then return {'ended', row[1]} end
if row[4] ~= 'cancel' then redis.call('HSET', KEYS[1], 'wish', ARGV[1]) end
return {'ok', row[1], row[2]}
