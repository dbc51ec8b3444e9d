#!/bin/bash
# URL NAME COMMAND...: as one would write it with psql, whose session has to stay open beside the command
url=$1 name=$2
shift 2
coproc PSQL { exec psql -qAtX "$url"; }
psql=$PSQL_PID status=75
echo "select pg_try_advisory_lock(hashtext('$name'));" >&"${PSQL[1]}"
read -r got <&"${PSQL[0]}"
if [ "$got" = t ]; then
    "$@"
    status=$?
fi
echo '\q' >&"${PSQL[1]}"
wait "$psql"
exit $status
