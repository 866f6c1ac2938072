#!lua flags=allow-oom
-- KEYS: enrolment token. Returns {token or false, number of agents and keys that it has enrolled}.
local others = 1 + redis.call('HEXISTS', KEYS[1], 'bucket')
return {redis.call('HGET', KEYS[1], 'token'), math.max(0, redis.call('HLEN', KEYS[1]) - others)}
