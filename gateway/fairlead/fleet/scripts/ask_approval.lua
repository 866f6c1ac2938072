#!lua flags=allow-oom
-- KEYS: pending enrolments. ARGV: `agent thumbprint`, id of the token, address, how long an entry is kept (ms), most
-- entries, most of one token.
-- Asks whether an enrolment was approved, and records it if nobody has asked before. Returns `approved`, `denied`,
-- `pending` or `full`. An entry is `state first last token address`: the times in ms when it was asked for first and
-- last; once it is decided, last is when.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function parse(entry)
  local state, first, last, token, address = string.match(entry, '^(%S+) (%d+) (%d+) (%S+) (.*)$')
  return state, first, tonumber(last), token, address
end
local known = redis.call('HGET', KEYS[1], ARGV[1])
if known then
  local state, first, last, token, address = parse(known)
  if now - last <= tonumber(ARGV[4]) then
    if state == 'pending' then
      redis.call('HSET', KEYS[1], ARGV[1], string.format('pending %s %.0f %s %s', first, now, ARGV[2], ARGV[3]))
    end
    return state
  end
end
local entries, of_token, expired = redis.call('HGETALL', KEYS[1]), 0, {}
for i = 1, #entries, 2 do
  local _, _, last, token = parse(entries[i + 1])
  if now - last > tonumber(ARGV[4]) then expired[#expired + 1] = entries[i]
  elseif token == ARGV[2] then of_token = of_token + 1 end
end
if #expired > 0 then redis.call('HDEL', KEYS[1], unpack(expired)) end
if redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[5]) or of_token >= tonumber(ARGV[6]) then return 'full' end
redis.call('HSET', KEYS[1], ARGV[1], string.format('pending %.0f %.0f %s %s', now, now, ARGV[2], ARGV[3]))
return 'pending'
