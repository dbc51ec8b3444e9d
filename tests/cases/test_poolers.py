"""Public cases: what may stand between a job and its PostgreSQL. tests/shell.py explains `timed` and `await`."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from fixtures_nfs import unusable
from fixtures_postgresql import as_nobody, free_port
from fixtures_store import until
from shell import Shell

SLACK = 2.0  # seconds that a busy machine may add to what a case allows
ERR = {"69", "77", "78"}  # the job was not run, and not because somebody else runs it
COUNT = """
select count(*) from pg_locks
where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())
"""


@pytest.fixture
def pgbouncer(postgresql_server, postgresql_database) -> Iterator[Callable[[str], str]]:
    """pgbouncer(pool_mode): the URL of one that has three connections to the server."""
    program = shutil.which("pgbouncer") or unusable("needs Debian's package pgbouncer")
    if not hasattr(postgresql_server, "home"):
        pytest.skip("needs a server of our own")
    running: list[subprocess.Popen[bytes]] = []

    def start(mode: str) -> str:
        port = free_port()
        home = Path(tempfile.mkdtemp(prefix="pgbouncer-", dir=postgresql_server.home))  # a port may come again
        home.chmod(0o777)
        (home / "ini").write_text(
            f"[databases]\n* = host=127.0.0.1 port={postgresql_server.port} user=postgres\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nlogfile = {home}/log\n"
            f"auth_type = any\npool_mode = {mode}\ndefault_pool_size = 3\n"
        )
        running.append(subprocess.Popen(as_nobody(str(program), str(home / "ini")), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

        def up() -> bool:
            assert running[-1].poll() is None, (home / "log").read_text()
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        until(up)
        return f"postgresql://postgres@127.0.0.1:{port}/{postgresql_database}"

    yield start
    for process in running:
        process.kill()
        process.wait()


@contextlib.contextmanager
def neighbours(url: str, count: int = 4) -> Iterator[None]:
    """Other clients of the pooler: their transactions take turns on its few connections."""
    over, busy = threading.Event(), threading.Barrier(count + 1)

    def talk() -> None:
        with psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection:
            busy.wait(30)
            while not over.wait(0.03):
                with connection.transaction():
                    connection.execute("select pg_sleep(0.005)")

    threads = [threading.Thread(target=talk) for _ in range(count)]
    for thread in threads:
        thread.start()
    busy.wait(30)
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(30)


def test_o34_behind_a_transaction_pooler_every_run_is_right(pgbouncer, postgresql_url):
    """Twenty runs alike, with other clients on the pool: each runs, and no advisory lock sticks to a pooled connection."""
    url = pgbouncer("transaction")
    with Shell(url) as sh, neighbours(url):
        done = sh.run(
            'for i in $(seq 20); do cronlock g1 -- sh -c "echo r >>$T/hits"; echo $?; done; wc -l <$T/hits; sql "$COUNT"',
            DIRECT=postgresql_url,
            COUNT=COUNT,
        )
    assert done.out.split() == ["0"] * 20 + ["20", "0"]
    assert done.err == ""


def test_o34_two_through_a_transaction_pooler_never_both_run(pgbouncer, postgresql_url):
    """Nor one through it and one beside it; a holder keeps its lease through the pool for longer than its ttl."""
    url = pgbouncer("transaction")
    with Shell(url) as sh, neighbours(url):
        done = sh.run(
            """
            cronlock --ttl 3 g1 -- sh -c 'touch $T/in; until [ -e $T/over ]; do sleep .05; done' & w=$!
            await test -e $T/in
            end=$(($(now) + 5000000000))
            while [ $(now) -lt $end ]; do
                cronlock --ttl 3 g1 -- touch $T/ran; echo through=$?
                cronlock --ttl 3 -b "$DIRECT" g1 -- touch $T/ran 2>/dev/null; echo beside=$?
            done
            touch $T/over; wait $w; echo holder=$?
            cronlock --ttl 3 -b "$DIRECT" g1 -- true 2>/dev/null; echo next=$?
            ls $T
            """,
            DIRECT=postgresql_url,
        )
    answers = [line for line in done.out.splitlines() if line.startswith(("through=", "beside="))]
    assert len(answers) >= 4
    assert set(answers) == {"through=75", "beside=75"}
    assert "ran" not in done.out.split()
    assert (done["holder"], done["next"], done.err) == ("0", "0", "")


def test_o34_what_needs_one_session_is_refused(pgbouncer, postgresql_url):
    """Whoever asks for the session's lock by name is told that there is a pooler, and nothing runs or is left."""
    url = pgbouncer("transaction")
    with Shell(f"{url}?lock_mode=session") as sh, neighbours(url):
        done = sh.run('cronlock g1 -- touch $T/ran; echo rc=$?; echo locks=$(sql "$COUNT"); ls $T', DIRECT=postgresql_url, COUNT=COUNT)
    assert done["rc"] in ERR
    assert "pool" in done.err
    assert done["locks"] == "0"
    assert "ran" not in done.out.split()


def test_o41_a_client_of_a_session_pooler_is_killed(pgbouncer, postgresql_url):
    """Such a pooler will do; after kill -9 the lock is free within the ttl, the orphan is gone, and no pooled session has a lock."""
    with Shell(pgbouncer("session")) as sh:
        done = sh.run(
            """
            cronlock --ttl 3 g10 -- sh -c 'touch $T/in; exec sleep 287.$M' & w=$!
            await test -e $T/in
            cronlock g10 -- touch $T/ran; echo busy=$?
            kill -9 $w
            timed freed await cronlock --ttl 3 g10 -- true
            echo left=$(pgrep -fxc "sleep 287.$M")
            echo locks=$(sql "$COUNT"); ls $T
            """,
            DIRECT=postgresql_url,
            COUNT=COUNT,
        )
    assert done["busy"] == "75"
    assert done.took("freed") < 4 + SLACK
    assert (done["left"], done["locks"]) == ("0", "0")
    assert "ran" not in done.out.split()


def test_waiters_leave_the_pool_to_the_holder(pgbouncer):
    """A session pooler lends a server connection to whoever is connected: those who wait don't keep the holder from renewing."""
    with Shell(pgbouncer("session")) as sh:
        done = sh.run(
            """
            cronlock --ttl 4 g11 -- sh -c 'touch $T/in; sleep 6' & w=$!
            await test -e $T/in
            for i in 1 2 3 4; do cronlock --wait 20 g11 -- sh -c "echo r >>$T/hits" & done
            wait $w; echo holder=$?; wait
            wc -l <$T/hits
            """
        )
    assert (done["holder"], done.out.split()[-1], done.err) == ("0", "4", "")


def test_o40_a_standby_is_refused_and_the_primary_beside_it_taken(own_postgresql, standby):
    """A streaming standby would grant its own advisory locks: an error; of both in one URL the primary is taken, and is busy."""
    with own_postgresql.admin() as admin:
        until(lambda: admin.execute("select from pg_stat_replication where state = 'streaming'").rowcount)
    with Shell(f"postgresql://postgres@127.0.0.1:{own_postgresql.port}/postgres") as sh:
        done = sh.run(
            """
            cronlock g7 -- sh -c 'touch $T/in; until [ -e $T/over ]; do sleep .05; done' & w=$!
            await test -e $T/in
            cronlock -b "$STANDBY" g7 -- touch $T/ran; echo standby=$?
            cronlock -b "$BOTH" g7 -- touch $T/ran; echo both=$?
            touch $T/over; wait $w; echo holder=$?
            cronlock -b "$BOTH" g7 -- true; echo next=$?
            ls $T
            """,
            STANDBY=f"postgresql://postgres@127.0.0.1:{standby}/postgres",
            BOTH=f"postgresql://postgres@127.0.0.1:{standby},127.0.0.1:{own_postgresql.port}/postgres",
        )
    assert done["standby"] in ERR
    assert "standby" in done.err and "read-only" in done.err
    assert (done["both"], done["holder"], done["next"]) == ("75", "0", "0")
    assert "ran" not in done.out.split()
    assert done.err.count("\n") == 1
