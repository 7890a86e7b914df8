-- Moves the end of leases that are not over. Returns {now, then for each 1, or 0 if it was over}.
-- ARGV: now, ms from now, only later ones, then deliveries
local due, only_later = now + tonumber(ARGV[2]), ARGV[3] == '1'
local places, receipts = meant(4)
local good, dues = delivered(places, receipts), only_later and call('ZMSCORE', lease, unpack(places))
local result, moved, places_moved = {now}, {}, {}
for index, place in ipairs(places) do
  result[index + 1] = good[index] and 1 or 0
  if good[index] and not (only_later and tonumber(dues[index]) >= due) then
    moved[#moved + 1] = due
    moved[#moved + 1] = place
    places_moved[#places_moved + 1] = place
  end
end
if #moved > 0 then
  call('ZREM', lease, unpack(places_moved)) -- a server without memory lets a script go on that has begun with this
  call('ZADD', lease, unpack(moved))
  if not only_later then
    ring_if_earliest(due)
  end
end
return result
