"""URL NAME COMMAND...: as one would write it with psycopg."""

import subprocess
import sys

import psycopg

with psycopg.connect(sys.argv[1], autocommit=True) as connection:
    row = connection.execute("select pg_try_advisory_lock(hashtext(%s))", [sys.argv[2]]).fetchone()
    status = subprocess.call(sys.argv[3:]) if row and row[0] else 75
sys.exit(status)
