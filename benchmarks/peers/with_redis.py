"""URL NAME COMMAND...: as one would write it with redis-py."""

import subprocess
import sys

import redis

lock = redis.Redis.from_url(sys.argv[1]).lock(sys.argv[2], timeout=600, blocking=False)
if not lock.acquire():
    sys.exit(75)
try:
    status = subprocess.call(sys.argv[3:])
finally:
    lock.release()
sys.exit(status)
