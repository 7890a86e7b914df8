"""The mailbox in Redis or Valkey, shared by the processes of many machines; it needs ``loopwarden[redis]``.

What may change here is how the server is reached, and how waiting processes are notified. What is in the server may
change only together with the prefix of its keys, in `_scripts`: processes of two versions share a mailbox during a
deployment.
"""

try:
    import redis as _redis
except ImportError:
    raise ImportError("RedisMailbox needs the package redis: pip install 'loopwarden[redis]'") from None

del _redis
