-- Deletes messages whose delivery is not over. Returns for each 1, or 0 if it was over.
-- ARGV: now, again, letters, then deliveries
local again, letters = ARGV[2] == '1', ARGV[3] == '1'
local places, receipts, dues = meant(4)
local good = delivered(places, receipts)
local gone, result, was_before = {}, {}, false
for index, place in ipairs(places) do
  if good[index] then
    gone[#gone + 1] = place
    result[index] = 1
  else
    result[index] = again and now < dues[index] and call('HEXISTS', body, place) == 0 and 1 or 0
    was_before = was_before or result[index] == 1
  end
end
if was_before then
  write_again()
end
if #gone > 0 then
  call('ZREM', lease, unpack(gone))
  call('HDEL', hold, unpack(gone))
  call('HDEL', body, unpack(gone))
  if letters then
    for _, about in ipairs(call('HMGET', base .. ':about', unpack(gone))) do
      if about then
        call('HDEL', base .. ':ids', cjson.decode(about).id)
      end
    end
    call('HDEL', base .. ':about', unpack(gone))
    call('ZREM', base .. ':all', unpack(gone))
  else
    made_room()
  end
end
return result
