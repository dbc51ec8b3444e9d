#!/bin/sh
# A script that runs once at a time, whoever starts it and from where: it starts itself again under cronlock.
# Not under flock's habit of locking "$0": a deployment replaces that file, and a new file is a new lock.

name=import-orders
if [ "${CRONLOCK_RUN_NAME:-}" != "$name" ]; then
    exec cronlock "$name" "$0" "$@"
fi

# From here on nobody else runs this.
echo "run $CRONLOCK_RUN_ID of $name with $# arguments: $*"
sleep 1
