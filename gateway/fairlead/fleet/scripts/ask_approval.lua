#!lua flags=allow-oom
-- KEYS: pending enrolments. ARGV: `agent thumbprint`, id of the token, address, how long an entry is kept (ms), most
-- entries, most entries of one token.
-- Asks whether an enrolment with this token was approved, and records it if nobody has asked before. Returns `approved`,
-- `denied`, `pending` or `full`. An entry is `state first last token address`: the times in ms when it was asked for
-- first and last; once it is decided, last is when. Of a full list, what has expired makes room, and then the denials.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function parse(entry)
  local state, first, last, token = string.match(entry, '^(%S+) (%d+) (%d+) (%S+) ')
  return state, first, tonumber(last), token
end
local asked = now
local known = redis.call('HGET', KEYS[1], ARGV[1])
if known then
  local state, first, last, token = parse(known)
  if token == ARGV[2] and now - last <= tonumber(ARGV[4]) then
    if state ~= 'pending' then return state end
    asked = first
  end
elseif redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[6]) then
  local entries, removed, own = redis.call('HGETALL', KEYS[1]), {}, 0
  for i = 1, #entries, 2 do
    local state, _, last, token = parse(entries[i + 1])
    if state == 'denied' or now - last > tonumber(ARGV[4]) then
      removed[#removed + 1] = entries[i]
    elseif token == ARGV[2] then
      own = own + 1
    end
  end
  if own >= tonumber(ARGV[6]) then return 'full' end
  if #entries / 2 >= tonumber(ARGV[5]) then
    if #removed == 0 then return 'full' end
    redis.call('HDEL', KEYS[1], unpack(removed))
  end
end
redis.call('HSET', KEYS[1], ARGV[1], string.format('pending %.0f %.0f %s %s', asked, now, ARGV[2], ARGV[3]))
return 'pending'
