-- Reads letters of dead letters, whose key KEYS[1] is. Returns place, body and JSON of each, one after the other.
-- ARGV: now, 'range' and the first and the last in order, or 'id' and which
local places
if ARGV[2] == 'range' then
  places = call('ZRANGE', base .. ':all', ARGV[3], ARGV[4])
else
  places = {call('HGET', base .. ':ids', ARGV[3]) or nil}
end
local found = {}
for _, place in ipairs(places) do
  found[#found + 1] = place
  found[#found + 1] = call('HGET', body, place) or ''
  found[#found + 1] = call('HGET', base .. ':about', place) or '{}'
end
return found
