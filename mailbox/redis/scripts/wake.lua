-- Has the notifier of a process look up. KEYS[1] is its own key, which it deletes when it ends.
redis.call('RPUSH', KEYS[1], '1')
redis.call('EXPIRE', KEYS[1], 60)
return 1
