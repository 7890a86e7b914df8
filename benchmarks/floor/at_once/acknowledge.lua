-- As one_by_one/acknowledge.lua, with one command for all of them.
redis.call('ZREM', KEYS[4], unpack(ARGV))
redis.call('HDEL', KEYS[3], unpack(ARGV))
