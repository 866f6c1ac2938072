#!lua flags=allow-oom
-- KEYS: cmd, agent row. ARGV: agent, gen to which the command was offered, '1' if it may have been written to that link,
-- '' if it certainly was not and never will be.
-- Ends an offer: the command is queued again, or counts as sent like any other. Changes nothing if the agent has
-- acknowledged it, or the offer was ended before.
-- Returns the lease that holds the agent, '' for none; false if there was no such offer.
local row, offer = redis.call('HGET', KEYS[1], 't:' .. ARGV[1]), 'sent|' .. ARGV[2] .. '|0|0|'
if not row or string.sub(row, 1, #offer) ~= offer then return false end
-- For the fields, see record.lua, whose functions this script does not need.
row = ARGV[3] == '' and 'queued|0|0|0|' or 'sent|' .. ARGV[2] .. '|0|1|' .. string.sub(row, #offer + 1)
redis.call('HSET', KEYS[1], 't:' .. ARGV[1], row)
return redis.call('HGET', KEYS[2], 'lease') or ''
