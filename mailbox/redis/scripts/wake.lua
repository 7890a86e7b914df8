-- Has the notifier of a process look up. KEYS[1] is its own key, which is left to expire.
redis.call('LTRIM', KEYS[1], 0, -1) -- first: a server without memory lets a script go on that has begun with this
redis.call('RPUSH', KEYS[1], '1')
redis.call('EXPIRE', KEYS[1], 60)
return 1
