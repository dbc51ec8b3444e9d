"""-u URL --name NAME --wait-timeout 0 --auto-release-time MILLISECONDS run COMMAND...: fredlock as it was meant. As it is, it hands
redis-py a float where an integer is wanted, and takes milliseconds for seconds."""

import redis
from fredlock.cli import cli

as_it_is = redis.Redis.set
redis.Redis.set = lambda self, *args, px, **options: as_it_is(self, *args, px=int(px), **options)
cli()
