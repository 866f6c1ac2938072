#!lua flags=allow-oom
-- KEYS: approvals. ARGV: id, digest of the subject, digest of the terms, id of the command or run.
-- Returns `ok` and the id that has used the approval, which is the first one; or `gone` if it has expired or is of
-- another subject, `terms` if something else was approved, or its state if it is not approved.
local entry = redis.call('HGET', KEYS[1], ARGV[1])
if not entry then return {'gone', ''} end
local state, expires, subject, terms, command, decision =
  string.match(entry, '^(%S+) (%d+) (%S+) (%S+) (%S+) (.*)$')
local time = redis.call('TIME')
if tonumber(expires) <= time[1] * 1000 + math.floor(time[2] / 1000) then return {'gone', ''} end
if subject ~= ARGV[2] then return {'gone', ''} end
if terms ~= ARGV[3] then return {'terms', ''} end
if state == 'used' then return {'ok', command} end
if state ~= 'approved' then return {state, ''} end
redis.call('HSET', KEYS[1], ARGV[1], table.concat({'used', expires, subject, terms, ARGV[4], decision}, ' '))
return {'ok', ARGV[4]}
