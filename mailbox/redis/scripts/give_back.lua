-- Gives messages back whose delivery is not over. Returns for each 1, or 0 if it was over.
-- ARGV: now, again, counted, delay, error, has an error, rings, then deliveries
local again, counted, after, err, has_error = ARGV[2] == '1', ARGV[3] == '1', tonumber(ARGV[4]), ARGV[5], ARGV[6] == '1'
local places, receipts, dues = meant(8)
local good = delivered(places, receipts)
local result, any = {}, false
for index, place in ipairs(places) do
  if good[index] then
    result[index], any = 1, true
    call('ZREM', lease, place) -- first: a server without memory lets a script go on that has begun with this
    local count, told = held(call('HGET', hold, place))
    if not counted then
      count = count - 1
    end
    if has_error then
      told = err
    end
    if count == 0 and told == '' then
      call('HDEL', hold, place)
    else
      call('HSET', hold, place, count .. ':::' .. told)
    end
    if after > 0 then
      call('ZADD', delay, now + after, place)
    else
      call('ZADD', back, place, place)
    end
  else
    result[index] = again and now < dues[index] and string.sub(call('HGET', hold, place) or '', 1, #receipts[index]) ~= receipts[index] and 1 or 0
  end
end
if any then
  if after > 0 then
    ring_if_earliest(now + after)
  elseif ARGV[7] == '1' then
    ring(bell)
  end
end
return result
