#!lua flags=allow-oom
-- KEYS: cmd, outcome, deadlines. ARGV: agent, id, end blob of a command that is lost, ms after which the command sweeper
-- looks at it, memory of the agent that has ended it ('' if a node has).
-- A node knows, after a failover, how a command has ended that end_lost.lua has written as lost. The record is opened
-- again, so that the results and the end can be stored as usual. It says that the command was sent to this memory, by
-- no generation: a node that had sent it to another one changes nothing (recall_command.lua). It is in no list of open
-- commands, and must never be sent again, since its payload is lost.
-- Returns 'ok' (it is open now) | 'open' (it was) | 'over' (it ended in another way) | 'gone'.
local rec = redis.call('HMGET', KEYS[1], 't:' .. ARGV[1], 'sum', 'e:' .. ARGV[1], 'terms')
if not rec[1] then return 'gone' end
if not rec[3] then return 'open' end
if rec[1] ~= 'failed|0|0|0|' or rec[2] ~= '0|0|0|0' or rec[3] ~= ARGV[3] then return 'over' end
local terms = string.gsub(rec[4], '|safe|', '|never|')
redis.call('HSET', KEYS[1], 't:' .. ARGV[1], 'sent|0|0|1|' .. ARGV[5], 'sum', '1|0|0|0', 'terms', terms)
redis.call('HDEL', KEYS[1], 'e:' .. ARGV[1])
redis.call('DEL', KEYS[2])
-- In case that the node does not come to store the end.
local t = redis.call('TIME')
redis.call('ZADD', KEYS[3], string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000) + ARGV[4]),
  ARGV[2] .. ' ' .. ARGV[1])
return 'ok'
