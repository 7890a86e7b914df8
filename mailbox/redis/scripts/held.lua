-- Reads a chunk of what is leased. Returns {cursor, birth, place, when its lease ends, and hold of each}. ARGV: now, cursor
local found = call('HSCAN', hold, ARGV[2], 'COUNT', CHUNK)
local result = {found[1], call('HGET', meta, 'birth') or ''}
for index = 1, #found[2], 2 do
  local due = call('ZSCORE', lease, found[2][index])
  if due and tonumber(due) > now then
    result[#result + 1] = found[2][index]
    result[#result + 1] = due
    result[#result + 1] = found[2][index + 1]
  end
end
return result
