-- Gives a sign of life. Returns what may be done with the mailbox. ARGV: now, holder, what it says of itself
call('ZREM', root .. ':members', ARGV[2]) -- first: a server without memory lets a script go on that has begun with this
call('ZADD', root .. ':members', server_time(), ARGV[2])
call('HSET', root .. ':member', ARGV[2], ARGV[3])
return call('HGET', meta, 'state') or ''
