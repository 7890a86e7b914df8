-- Sets what all processes may do with a mailbox, and has their notifiers look at once. Returns what it was before.
-- ARGV: now, 'paused', 'draining' or '', what the keys of notifiers begin with
call('ZREM', root .. ':members', '') -- first: a server without memory lets a script go on that has begun with this
local before = call('HGET', meta, 'state') or ''
if ARGV[2] == '' then
  call('HDEL', meta, 'state')
else
  call('HSET', meta, 'state', ARGV[2])
end
if ARGV[2] ~= 'paused' then
  ring(bell)
end
pass_room(0)
for _, member in ipairs(call('ZRANGE', root .. ':members', 0, -1)) do
  local key = ARGV[3] .. ':wake:' .. member
  call('RPUSH', key, 'state')
  call('EXPIRE', key, 60)
end
return before
