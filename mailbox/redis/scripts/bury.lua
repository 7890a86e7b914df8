-- Makes messages dead letters whose delivery is not over. Returns for each 1, or 0 if it was over.
-- ARGV: now, again, then place, receipt, due, count, reason and error of each
local again = ARGV[2] == '1'
local result = {}
for index = 3, #ARGV, 6 do
  local place = ARGV[index]
  if delivered({place}, {ARGV[index + 1]})[1] then
    local _, told = held(call('HGET', hold, place))
    call('ZREM', lease, place)
    bury(place, tonumber(ARGV[index + 3]), ARGV[index + 4], ARGV[index + 5] ~= '' and ARGV[index + 5] or told)
    result[#result + 1] = 1
  else
    local is_gone = call('HEXISTS', body, place) == 0
    result[#result + 1] = again and now < tonumber(ARGV[index + 2]) and is_gone and 1 or 0
    if result[#result] == 1 then
      write_again()
    end
  end
end
return result
