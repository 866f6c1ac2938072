#!lua flags=allow-oom
-- KEYS: dead_letters, dead_letter_bytes. ARGV: positions. Returns how many of them there were.
local removed = 0
for _, position in ipairs(ARGV) do
  local letter = redis.call('XRANGE', KEYS[1], position, position)[1]
  if letter then
    redis.call('XDEL', KEYS[1], position)
    redis.call('DECRBY', KEYS[2], #letter[2][2])
    removed = removed + 1
  end
end
if redis.call('XLEN', KEYS[1]) == 0 then redis.call('DEL', KEYS[1], KEYS[2]) end
return removed
