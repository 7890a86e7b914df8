-- Goes over all leases, a chunk with each call, and ends those of a dead process, puts back those of receives whose
-- answers were lost, or lets those of a process that closes last for their time. Returns {cursor, how many}.
-- ARGV: now, cursor, 'dead' 'lost' or 'left', which process, or receipts
local what, which, receipts = ARGV[3], ARGV[4], {}
for index = 4, #ARGV do
  receipts[ARGV[index]] = true
end
local members = root .. ':members'
call('ZREM', members, '') -- first: a server without memory lets a script go on that has begun with this
if what == 'dead' then
  local seen = call('ZSCORE', members, which)
  if seen and tonumber(seen) + DEAD_AFTER > server_time() then
    return {'0', 0} -- it lives after all
  end
end
local found = call('HSCAN', hold, ARGV[2], 'COUNT', CHUNK)
local count = 0
for index = 1, #found[2], 2 do
  local place, text = found[2][index], found[2][index + 1]
  local deliveries, receipt, holder, err = string.match(text, '^(%d+):([^:]*):([^:]*):(.*)$')
  if what == 'dead' and holder == which then
    call('ZADD', lease, 'XX', now, place)
    count = count + 1
  elseif what == 'left' and holder == which then
    call('HSET', hold, place, deliveries .. ':' .. receipt .. '::' .. err)
    count = count + 1
  elseif what == 'lost' and receipts[receipt] then
    call('ZREM', lease, place)
    call('ZADD', back, place, place)
    call('HSET', hold, place, (deliveries - 1) .. ':::' .. err)
    count = count + 1
  end
end
if count > 0 and what ~= 'left' then
  ring(bell)
end
return {found[1], count}
