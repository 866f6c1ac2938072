#!lua flags=allow-oom
-- KEYS: cmd, outcome, aside. ARGV: '1' for the first step, '' for a further one, its life in ms, the step.
-- A node knows, after a failover, how a command has ended that has no record, so that it cannot be stored. What it
-- knows is set aside for the node that accepted the command, which finds it with end_lost.lua.
-- Returns 1, or 0 if there is a record now. If the record has expired, nothing is set aside.
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
if redis.call('EXISTS', KEYS[2]) == 1 then return 1 end
if ARGV[1] == '1' then redis.call('DEL', KEYS[3]) end
redis.call('RPUSH', KEYS[3], ARGV[3])
redis.call('PEXPIRE', KEYS[3], ARGV[2])
return 1
