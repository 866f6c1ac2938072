#!lua
-- KEYS: enrolment token. ARGV: agent, thumbprint, number of uses.
-- Counts one use for each agent and key; the same agent with the same key may repeat its enrolment.
-- Returns 1, or 0 if the token has no use left, or -1 if there is no such token.
if redis.call('HEXISTS', KEYS[1], 'token') == 0 then return -1 end
local field = 'agent:' .. ARGV[1] .. ' ' .. ARGV[2]
if redis.call('HEXISTS', KEYS[1], field) == 1 then return 1 end
-- The token itself is one field of the hash.
if redis.call('HLEN', KEYS[1]) - 1 >= tonumber(ARGV[3]) then return 0 end
redis.call('HSET', KEYS[1], field, '1')
return 1
