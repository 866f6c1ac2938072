#!lua flags=allow-oom
-- KEYS: events, events_bytes, events_trimmed, events_agents. ARGV: most entries, most bytes, agent, type, id, time ms,
-- payload, most entries of one agent, most bytes of one agent.
-- Returns how many older events of the same agent were removed because it had more than one agent may have.
-- Bytes are those of payloads, types and ids, and EVENT_BYTES for each entry besides. Of an agent that has too much, its
-- oldest events are removed, so that it displaces nobody else's, and an event of the type `fairlead.events.dropped` in
-- its name tells every reader. Of all agents together the oldest are removed; the last of these is noted, so that a
-- reader who had not reached it is told; for a new stream that is whatever was there before its first event.
-- At most 100 entries are removed at once, so that other clients do not have to wait.
local EVENT_BYTES, REMOVED = 120, 100
local EXAMINED = 256 -- entries in which an agent's oldest are looked for; the next event of the agent goes on behind them
local agent = ARGV[3]
local function size(entry) return #entry[2][2] + #entry[2][4] + #entry[2][6] + #entry[2][10] + EVENT_BYTES end

-- The account of an agent: entries|bytes|the position before which it has none.
local function account(name)
  local entries, bytes, from = string.match(redis.call('HGET', KEYS[4], name) or '0|0|0-0', '^(%d+)|(%d+)|(.+)$')
  return {entries = tonumber(entries), bytes = tonumber(bytes), from = from}
end

local function put(name, of)
  -- Events that an earlier version has stored are in no account.
  if of.entries <= 0 then return redis.call('HDEL', KEYS[4], name) end
  redis.call('HSET', KEYS[4], name, string.format('%.0f|%.0f|%s', of.entries, math.max(of.bytes, 0), of.from))
end

local function add(kind, id, at, payload)
  local added = redis.call('XADD', KEYS[1], '*', 'a', agent, 't', kind, 'i', id, 'at', at, 'p', payload)
  local bytes = #agent + #kind + #id + #payload + EVENT_BYTES
  return added, bytes, redis.call('INCRBY', KEYS[2], bytes)
end

local own = account(agent)
local added, bytes, total = add(ARGV[4], ARGV[5], ARGV[6], ARGV[7])
own.entries, own.bytes = own.entries + 1, own.bytes + bytes
if redis.call('EXISTS', KEYS[3]) == 0 then
  redis.call('SET', KEYS[3], string.format('%.0f-0', tonumber(added:match('^%d+')) - 1))
end

local dropped = 0
local most_entries, most_bytes = tonumber(ARGV[8]), tonumber(ARGV[9])
if own.entries > most_entries or own.bytes > most_bytes then
  -- An eighth more is removed than has to be, so that there is one event for readers for many removals.
  local examined, freed, last = 0, 0, nil
  local enough = false
  while not enough and examined < EXAMINED do
    local page = redis.call('XRANGE', KEYS[1], '(' .. own.from, '+', 'COUNT', 16) -- an event may have a megabyte
    if #page == 0 then break end
    for _, entry in ipairs(page) do
      if entry[1] == added then enough = true break end -- not the one that was just added
      examined, own.from = examined + 1, entry[1]
      if entry[2][2] == agent then
        dropped, freed, last = dropped + redis.call('XDEL', KEYS[1], entry[1]), freed + size(entry), entry[1]
        enough = dropped == REMOVED
          or own.entries - dropped <= most_entries * 7 / 8 and own.bytes - freed <= most_bytes * 7 / 8
        if enough then break end
      end
    end
  end
  own.entries, own.bytes = own.entries - dropped, own.bytes - freed
  if dropped > 0 then
    redis.call('DECRBY', KEYS[2], freed)
    local told = string.format('{"count":%d,"until":"%s"}', dropped, last)
    local _, more, all = add('fairlead.events.dropped', 'dropped-' .. last, added:match('^%d+'), told)
    bytes, total = more, all
    own.entries, own.bytes = own.entries + 1, own.bytes + bytes
  end
end
put(agent, own)

local over = redis.call('XLEN', KEYS[1]) - tonumber(ARGV[1])
if total <= tonumber(ARGV[2]) and over <= 0 then return dropped end
local removed, freed, last, gone = 0, 0, nil, {}
for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', REMOVED)) do
  if total - freed <= tonumber(ARGV[2]) and removed >= over then break end
  removed, freed, last = removed + redis.call('XDEL', KEYS[1], entry[1]), freed + size(entry), entry[1]
  local of = gone[entry[2][2]] or account(entry[2][2])
  of.entries, of.bytes = of.entries - 1, of.bytes - size(entry)
  gone[entry[2][2]] = of
end
for name, of in pairs(gone) do put(name, of) end
if last then redis.call('SET', KEYS[3], last) end
if redis.call('XLEN', KEYS[1]) == 0 then redis.call('DEL', KEYS[2]) else redis.call('DECRBY', KEYS[2], freed) end
return dropped
