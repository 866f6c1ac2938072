#!lua flags=allow-oom
-- KEYS: approvals. ARGV: id, `approved` or `denied`, who decides as JSON.
-- Returns `ok`; the state of a request that is not pending; or `gone` if it has expired. Only one decision is ever made.
local entry = redis.call('HGET', KEYS[1], ARGV[1])
if not entry then return 'gone' end
local state, expires, subject, terms = string.match(entry, '^(%S+) (%d+) (%S+) (%S+) ')
local time = redis.call('TIME')
if tonumber(expires) <= time[1] * 1000 + math.floor(time[2] / 1000) then return 'gone' end
if state ~= 'pending' then return state end
redis.call('HSET', KEYS[1], ARGV[1], table.concat({ARGV[2], expires, subject, terms, '-', ARGV[3]}, ' '))
return 'ok'
