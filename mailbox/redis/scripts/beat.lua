-- Gives a sign of life. ARGV: now, holder, what it says of itself
call('ZADD', root .. ':members', server_time(), ARGV[2])
call('HSET', root .. ':member', ARGV[2], ARGV[3])
return 1
