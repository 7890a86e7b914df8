-- Gives a sign of life. Returns what may be done with the mailbox, the time, then the processes that should have given one,
-- each with the time of its last. ARGV: now, holder, what it says of itself
local members, time = root .. ':members', server_time()
call('ZREM', members, ARGV[2]) -- first: a server without memory lets a script go on that has begun with this
call('ZADD', members, time, ARGV[2])
call('HSET', root .. ':member', ARGV[2], ARGV[3])
return {
  call('HGET', meta, 'state') or '',
  time,
  unpack(call('ZRANGEBYSCORE', members, '-inf', time - SILENT_AFTER, 'WITHSCORES', 'LIMIT', 0, 10))
}
