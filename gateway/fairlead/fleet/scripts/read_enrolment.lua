#!lua
-- KEYS: enrolment token. Returns {token or false, number of agents and keys that it has enrolled}.
return {redis.call('HGET', KEYS[1], 'token'), math.max(0, redis.call('HLEN', KEYS[1]) - 1)}
