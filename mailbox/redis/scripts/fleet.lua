-- Reads which processes share a mailbox. Returns {now, state, process, last sign of life and what it says of itself of each}.
local found = {server_time(), call('HGET', meta, 'state') or ''}
local members = call('ZRANGE', root .. ':members', 0, -1, 'WITHSCORES')
for index = 1, #members, 2 do
  found[#found + 1] = members[index]
  found[#found + 1] = members[index + 1]
  found[#found + 1] = call('HGET', root .. ':member', members[index]) or '{}'
end
return found
