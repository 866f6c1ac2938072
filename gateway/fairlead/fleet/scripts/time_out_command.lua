#!lua flags=allow-oom
-- KEYS: cmd, out, in, outcome, kept, kept_until, kept_bytes. ARGV: agent, the time up to which deadlines have passed (Redis TIME in ms), end
-- blob for a target whose deadline has passed.
-- Ends a target that was sent to the agent and whose deadline has passed as `timeout`. For any other target it returns
-- everything that the caller needs to decide.
-- Returns {'gone'} | {'over', state, followers} | {'ended', followers, about} | {'open', field, value …} of the record
-- except its payload.
-- Thousands of commands may have the same deadline, so this script extracts only what it needs from the packed fields
-- (see record.lua), does not call TIME, and makes one write instead of two or three, which Redis would wrap in MULTI and
-- EXEC in its append-only file. Together this halves the server's time. The functions of record.lua are created
-- anew in each run that reaches them, so they are included only where they are needed.
local SOON = 30000 -- ms
local field, passed = 't:' .. ARGV[1], tonumber(ARGV[2])
local rec = redis.call('HMGET', KEYS[1], field, 'sum', 'terms', 'w', 'about')
if not rec[1] then return {'gone'} end
local state = string.match(rec[1], '^%a+')
if state ~= 'running' and state ~= 'sent' and state ~= 'queued' then return {'over', state, rec[4]} end
local expires = tonumber(string.match(rec[3], '^%d+'))
if state ~= 'queued' and passed >= expires then
  -- Without an Idempotency-Key, the TTL that accept_command.lua set is the time to the deadline, the retention and a
  -- minute, so it need not be set again.
  if string.sub(rec[2], 1, 4) == '1|0|' and string.sub(rec[3], -2) == '|0' and passed - expires < SOON then
    redis.call('HSET', KEYS[1], field, 'timeout' .. string.sub(rec[1], #state + 1), 'sum', '0' .. string.sub(rec[2], 2),
      'e:' .. ARGV[1], ARGV[3], 'payload', '')
  else
--include record
    local keys = {KEYS[1], KEYS[2], KEYS[3], KEYS[4], [8] = KEYS[5], [9] = KEYS[6], [10] = KEYS[7]}
    finish_row(keys, ARGV[1], parse_row(rec[1]), 'timeout', ARGV[3], parse_sum(rec[2]), rec[3])
  end
  return {'ended', rec[4], rec[5]}
end
local open = {'open', field, rec[1], 'sum', rec[2], 'terms', rec[3], 'about', rec[5]}
local asked = redis.call('HMGET', KEYS[1], 'in', 'cancel')
if asked[1] then open[#open + 1], open[#open + 2] = 'in', asked[1] end
if asked[2] then open[#open + 1], open[#open + 2] = 'cancel', asked[2] end
return open
