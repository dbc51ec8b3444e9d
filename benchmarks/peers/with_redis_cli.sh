#!/bin/sh
# URL NAME COMMAND...: as one would write it with redis-cli
url=$1 name=$2
shift 2
token=$$-$(date +%s%N)
[ "$(redis-cli -u "$url" SET "$name" "$token" NX PX 600000)" = OK ] || exit 75
"$@"
status=$?
redis-cli -u "$url" EVAL "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) end" 1 "$name" "$token" >/dev/null
exit $status
