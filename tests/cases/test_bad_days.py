"""Public cases: losing the lock, and stores on a bad day. tests/shell.py explains `timed` and `await`."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from fixtures_postgresql import free_port
from fixtures_store import Started, until
from shell import Shell

SLACK = 2.0  # seconds that a busy machine may add to what a case allows
ERR = {"69", "77", "78"}  # the job was not run, and not because somebody else runs it
DOCS = Path(__file__).parents[2] / "docs"

ADVISORY = " from pg_locks where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())"
COUNT = "select count(*)" + ADVISORY

# a job that says that it is there, and goes on until it is told or stopped
JOB = "touch $T/in; n=0; until [ -e $T/over ] || [ $n = 400 ]; do n=$((n + 1)); sleep .05; done"


def only(*stores):
    return pytest.mark.parametrize("store", stores)


def key(sh, name):
    """What the store calls the lock."""
    return parse_qs(urlsplit(sh.backend).query).get("prefix", ["cronlock:"])[0] + name


@pytest.fixture
def bad_day(own_redis):
    """A shell whose Redis may be broken, and that server."""
    with Shell(own_redis.url()) as sh:
        yield sh, own_redis


def meanwhile(act, main):
    """The answer of `main`, with `act` beside it."""
    with ThreadPoolExecutor(1) as pool:
        acted = pool.submit(act)
        answer = main()
        acted.result(30)
    return answer


@only("redis", "postgresql")
def test_o12_a_dead_holders_lock_is_free_after_a_ttl(sh):
    """kill -9 of the wrapper, and at most a ttl later the next one runs; nobody waits for a day."""
    done = sh.run(
        """
        cronlock --ttl 3 c1 -- sh -c 'touch $T/in; exec sleep 297.$M' & w=$!
        await test -e $T/in
        kill -9 $w
        timed freed await cronlock c1 -- true
        echo left=$(pgrep -fxc "sleep 297.$M")
        """
    )
    assert done.took("freed") < 4 + SLACK
    assert done["left"] == "0"


def test_o12_the_default_ttl_is_short_and_documented():
    """A minute, in the page of options."""
    row = next(line for line in (DOCS / "cli.md").read_text().splitlines() if "--ttl" in line and "|" in line)
    assert "| `1m` |" in row


TAKE_OVER = {
    "redis": 'redis-cli SET "$KEY" intruder EX 60 >/dev/null',
    "postgresql": "sql \"update cronlock set token = 'intruder', expires = expires + interval '60s' where name = '$KEY' returning 1\"",
}
LOOK = {"redis": 'redis-cli GET "$KEY"', "postgresql": "sql \"select token from cronlock where name = '$KEY'\""}


@only("redis", "postgresql")
def test_o14_a_lock_lost_in_mid_run_stops_the_job(sh, store):
    """76, nothing of the tree left, one line that names the lock, and the other's lock untouched."""
    done = sh.run(
        f"""
        cronlock --ttl 3 c3 -- sh -c 'setsid sleep 299.$M & touch $T/in; wait' & w=$!
        await test -e $T/in
        {TAKE_OVER[store]} >/dev/null
        timed rc wait $w
        echo left=$(pgrep -fxc "sleep 299.$M")
        echo now=$({LOOK[store]})
        """,
        KEY=key(sh, "c3"),
    )
    assert (done["rc"], done["left"], done["now"]) == ("76", "0", "intruder")
    assert done.took("rc") < 3 + SLACK
    assert done.err.count("\n") == 1
    assert "c3" in done.err and "lost" in done.err


@only("redis", "postgresql")
def test_o14_carrying_on_is_the_users_decision(sh, store):
    """--on-lost continue: one line all the same, and the job's own status."""
    done = sh.run(
        f"""
        cronlock --ttl 3 --on-lost continue c3 -- sh -c "$JOB; exit 4" 2>$T/err & w=$!
        await test -e $T/in
        {TAKE_OVER[store]} >/dev/null
        await grep lost $T/err
        touch $T/over
        wait $w; echo rc=$?
        cat $T/err >&2
        echo now=$({LOOK[store]})
        """,
        KEY=key(sh, "c3"),
        JOB=JOB,
    )
    assert (done["rc"], done["now"]) == ("4", "intruder")
    assert done.err.count("\n") == 1


@only("redis", "postgresql")
def test_o16_the_ttl_travels_with_the_lock(sh):
    """A contender's shorter --ttl does not shorten what another host holds."""
    done = sh.run(
        """
        cronlock --ttl 12 c5 -- sh -c "$JOB" & w=$!
        await test -e $T/in
        end=$(($(now) + 3900000000))  # the first renewal comes after 4 s
        while [ $(now) -lt $end ]; do cronlock --ttl 1 c5 -- echo in; echo try=$?; done
        touch $T/over; wait $w; echo rc=$?
        """,
        JOB=JOB,
    )
    tries = [line for line in done.out.splitlines() if line.startswith("try=")]
    assert len(tries) >= 2
    assert set(tries) == {"try=75"}
    assert "in" not in done.out.splitlines()
    assert done["rc"] == "0"


@only("redis", "postgresql")
def test_o17_the_lease_is_renewed_while_the_job_cleans_up(sh):
    """TERM stops the job, and not the renewals: nobody gets in before the clean-up is over, and somebody at once after it."""
    done = sh.run(
        """
        job='trap "until [ -e $T/clean ]; do sleep .05; done; touch $T/done; exit 0" TERM; touch $T/in; while :; do sleep .05; done'
        cronlock --ttl 2 --kill-after 50 c6 -- sh -c "$job" & w=$!
        await test -e $T/in
        kill -TERM $w; end=$(($(now) + 5000000000))
        while [ $(now) -lt $end ]; do cronlock --ttl 2 c6 -- touch $T/early; echo try=$?; done
        touch $T/clean; wait $w; echo rc=$?
        timed next cronlock c6 -- true
        ls $T
        """
    )
    tries = [line for line in done.out.splitlines() if line.startswith("try=")]
    assert set(tries) == {"try=75"}
    assert "done" in done.out.split() and "early" not in done.out.split()
    assert (done["rc"], done["next"]) == ("0", "0")


def test_o18_a_blip_at_the_end_does_not_cost_the_next_run(own_redis, start: Callable[..., Started]):
    """The release is tried for some seconds, and the status is the job's."""
    began = time.monotonic()
    blip = f"kill -STOP {own_redis.pid}; (sleep 3; kill -CONT {own_redis.pid}) >/dev/null 2>&1 & exit 7"
    status, _, err = start("--ttl", "60", "c10", "sh", "-c", blip, backend=own_redis.url()).end()
    assert 3 <= time.monotonic() - began < 10
    assert status == 7
    assert err.count("\n") <= 1
    assert own_redis.cli("EXISTS", "cronlock:c10") == 0
    assert start("c10", "true", backend=own_redis.url()).end() == (0, "", "")


def test_o18_a_release_that_fails_says_so(own_redis, start: Callable[..., Started]):
    """One line, the job's status, and bounded."""
    began = time.monotonic()
    job = start("--ttl", "60", "c10", "sh", "-c", f"kill -STOP {own_redis.pid}; exit 7", backend=own_redis.url())
    status, _, err = job.end()
    assert time.monotonic() - began < 10
    assert status == 7
    assert err.count("\n") == 1
    assert "not released" in err


@only("postgresql")
def test_o36_a_session_that_is_ended_costs_nobody_the_lock(sh):
    """The row is the lease: nobody gets in, the job goes on, and the holder says in one line that it took the rest again."""
    done = sh.run(
        """
        cronlock --ttl 30 g3 -- sh -c "$JOB; exit 3" 2>$T/err & w=$!
        await test -e $T/in
        echo ended=$(sql "$TERMINATE")
        await test -s $T/err
        cronlock g3 -- touch $T/ran; echo other=$?
        echo locks=$(sql "$COUNT")
        touch $T/over
        timed rc wait $w
        cat $T/err >&2; ls $T
        """,
        JOB=JOB,
        TERMINATE="select pg_terminate_backend(pid)" + ADVISORY,
        COUNT=COUNT,
    )
    assert (done["ended"], done["other"], done["locks"], done["rc"]) == ("True", "75", "1", "3")
    assert "ran" not in done.out.split()
    assert done.err.count("\n") == 1
    assert "regained" in done.err or "held" in done.err


@only("postgresql")
def test_o37_both_sides_notice_a_cut_network(sh, postgresql_proxy, postgresql_database):
    """Nothing passes and nothing is closed: the job is stopped before its lease is over, and the server forgets the session."""
    script = """
        cronlock --ttl 4 g4 -- sh -c 'setsid sleep 288.$M & touch $T/in; wait' & w=$!
        await test -e $T/in
        await test -e $T/cut; cut=$(now)
        gone() { ! pgrep -fx "sleep 288.$M"; }
        free() { [ $(sql "$COUNT") = 0 ]; }
        await gone; echo gone.ms=$((($(now) - cut) / 1000000))
        await free; echo free.ms=$((($(now) - cut) / 1000000))
        wait $w; echo rc=$?; echo rc.ms=$((($(now) - cut) / 1000000))
        timed next cronlock -b "$DIRECT" g4 -- true 2>/dev/null
        """
    url = f"postgresql://postgres@127.0.0.1:{postgresql_proxy.port}/{postgresql_database}"

    def cut():
        until((sh.T / "in").exists, 30)
        postgresql_proxy.hold()
        (sh.T / "cut").touch()

    done = meanwhile(cut, lambda: sh.run(script, COUNT=COUNT, CRONLOCK_BACKEND=url))
    assert done["rc"] == "76"
    assert done.took("gone") < 4 + SLACK
    assert done.took("free") < 4 + 1.5 + SLACK
    assert done.took("rc") < 4 + 5 + SLACK  # a release is tried for 5 s
    assert done["next"] == "0"
    assert "lost" in done.err and "Traceback" not in done.err


@only("postgresql")
def test_o38_no_transaction_is_left_open(sh, postgresql_server, postgresql_database):
    """The holding session is idle outside any transaction, so no vacuum waits for it and no time-out for those ends it."""
    with postgresql_server.admin() as admin:
        admin.execute(f"alter database {postgresql_database} set idle_in_transaction_session_timeout = '500ms'")
    done = sh.run(
        """
        cronlock --ttl 30 g5 -- sh -c "$JOB" & w=$!
        await test -e $T/in
        for look in 1 2 3; do sql "$STATE"; sleep .4; done
        cronlock g5 -- touch $T/ran; echo rc=$?
        touch $T/over; wait $w; echo holder=$?
        """,
        JOB=JOB,
        STATE="select pid, state, xact_start is null, backend_xmin is null from pg_stat_activity"
        " where application_name like 'cronlock%' and datname = current_database()",
    )
    looks = [line for line in done.out.splitlines() if "|" in line]
    assert len(looks) == 3
    assert len(set(looks)) == 1  # the same session all the time
    assert looks[0].endswith("|idle|True|True")
    assert (done["rc"], done["holder"], done.err) == ("75", "0", "")


@only("postgresql")
def test_o39_a_connection_limit(sh, postgresql_server, postgresql_database):
    """Refused for want of connections is an error in the server's words and not busy; it is tried again few times, and the holder lives."""
    role = f"few_{postgresql_database}"
    with postgresql_server.admin(postgresql_database) as admin:
        if not hasattr(postgresql_server, "log"):
            pytest.skip("needs a server whose log can be read")
        admin.execute(f"create role {role} login password 'p' connection limit 1")
        admin.execute(f"grant create on schema public to {role}")
    starts = 5
    try:
        done = sh.run(
            f"""
            cronlock --ttl 60 g6 -- sh -c "$JOB" & w=$!
            await test -e $T/in
            for i in $(seq {starts}); do timed rc cronlock g6x -- touch $T/ran >$T/out$i 2>$T/err$i & list="$list $!"; done
            wait $list
            cat $T/out?; cat $T/err? >&2; ls $T
            touch $T/over; wait $w; echo holder=$?
            """,
            JOB=JOB,
            CRONLOCK_BACKEND=postgresql_server.url(postgresql_database, role, "p", connect_timeout="5"),
        )
        attempts = postgresql_server.log.read_text().count(f'too many connections for role "{role}"')
    finally:
        with postgresql_server.admin(postgresql_database) as admin:
            admin.execute(f"drop owned by {role}")
            admin.execute(f"drop role {role}")
    assert [line for line in done.out.splitlines() if line.startswith("rc=")] == ["rc=69"] * starts
    assert done.took("rc") < 15
    assert done.err.count("too many connections") == done.err.count("\n") == starts
    assert "ran" not in done.out.split()
    assert done["holder"] == "0"
    assert starts <= attempts <= starts * 15


def test_o43_a_replica_is_an_error(bad_day):
    """Never busy; after its promotion the same address works again."""
    sh, server = bad_day
    server.cli("REPLICAOF", "127.0.0.1", "1")
    done = sh.run("cronlock h2 -- touch $T/ran; echo rc=$?; ls $T; redis-cli REPLICAOF NO ONE; cronlock h2 -- true; echo again=$?")
    assert done["rc"] in ERR
    assert "replica" in done.err
    assert "ran" not in done.out.split()
    assert done["again"] == "0"


@only("redis")
def test_o44_a_vanished_key_is_taken_again_and_said(sh):
    """The state still names this run, so nobody can have had it: one line, and the next one is busy."""
    done = sh.run(
        """
        cronlock --ttl 3 h3 -- sh -c "$JOB" 2>$T/err & w=$!
        await test -e $T/in
        redis-cli DEL "$KEY"; gone=$(now)
        await test -s $T/err; echo told.ms=$((($(now) - gone) / 1000000))
        cronlock h3 -- touch $T/ran; echo other=$?
        touch $T/over; wait $w; echo rc=$?
        cat $T/err >&2; ls $T
        """,
        KEY=key(sh, "h3"),
        JOB=JOB,
    )
    assert (done["other"], done["rc"]) == ("75", "0")
    assert done.took("told") < 1 + SLACK  # a renewal
    assert done.err.count("\n") == 1
    assert "held again" in done.err
    assert "ran" not in done.out.split()


def test_o44_a_server_that_evicts_is_found_by_the_check(bad_day):
    """A run works and says nothing every minute; `cronlockctl check` and the docs name the trap."""
    sh, server = bad_day
    server.cli("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    done = sh.run("cronlock h3 -- true; echo rc=$?; cronlockctl check")
    assert done["rc"] == "0"
    assert "evict" in done.out + done.err or "maxmemory-policy" in done.out + done.err
    assert "maxmemory-policy noeviction" in " ".join((DOCS / "backends.md").read_text().split())


def test_o48_a_cluster_is_refused_in_words(start_redis):
    """A real MOVED: an error that says cluster, no run, and no key left on the node that would have it."""
    there, here = (start_redis("--cluster-enabled", "yes", "--cluster-port", str(free_port())) for _ in range(2))
    there.cli("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
    here.cli("CLUSTER", "MEET", "127.0.0.1", there.port, int(there.options[-1]))
    until(lambda: here.cli("CLUSTER", "SLOTS"), 30)
    until(lambda: "cluster_state:ok" in here.cli("CLUSTER", "INFO"), 30)
    try:
        with Shell(here.url()) as sh:
            done = sh.run(
                """
                cronlock h7 -- touch $T/ran; echo moved=$?
                cronlock -b "$THERE" h7 -- touch $T/ran; echo there=$?
                ls $T
                """,
                THERE=there.url(),
            )
        for run in ("moved", "there"):
            assert done[run] in ERR
        assert [("Cluster" in line) for line in done.err.splitlines()] == [True, True]
        assert "ran" not in done.out.split()
        assert there.cli("KEYS", "*") == []
    finally:
        here.stop()
        there.stop()


def test_o50_a_prefix_that_dash_put_in_the_background(sh):
    """`&>>` is no redirection under /bin/sh: the whole prefix is detached, and the lock covers the job all the same."""
    dash = shutil.which("dash")
    if not dash:
        pytest.skip("needs dash")
    done = sh.run(
        f"""
        timed detached {dash} -c 'cronlock i2 -- sh -c "$JOB" &>> $T/log'
        await test -e $T/in
        cronlock i2 -- true; echo a=$?
        touch $T/over
        await cronlock i2 -- true
        """,
        JOB=JOB,
    )
    assert (done["detached"], done["a"]) == ("0", "75")


def test_o50_a_string_that_puts_itself_in_the_background(sh):
    """In the string form the lock is free at once, and a warning says why."""
    if Path("/bin/sh").resolve().name != "dash":
        pytest.skip("needs a /bin/sh that is dash")
    done = sh.run(
        """
        cronlock i3 -c 'sleep 20 &>> $T/log'; echo rc=$?
        cronlock i3 -- true; echo b=$?
        """
    )
    assert done["rc"] == "0"
    assert done["b"] == "75" or (done["b"] == "0" and "background" in done.err)


def test_o71_a_client_whose_work_lives_elsewhere(sh):
    """`docker exec` is stopped by the limit, its work is not: that is documented, and never claimed to be over."""
    sh.program("docker", '#!/bin/sh\necho go >"$T/q"\nexec sleep 60\n')
    done = sh.run(
        """
        mkfifo $T/q
        (while read x <$T/q; do setsid sh -c 'until [ -e $T/over ]; do sleep .05; done; echo late >>$T/log' & done) &
        timed rc cronlock --max-runtime 1 n5 -- docker exec -i c job
        touch $T/over; await test -e $T/log; cat $T/log
        """
    )
    assert done["rc"] == "124"
    assert done.took("rc") < 5 + SLACK
    assert "late" in done.out.split()
    assert "runs its work elsewhere" in done.err
    assert not any(word in done.err for word in ("all processes", "everything", "all its"))
    assert "docker exec" in (DOCS / "guarantees.md").read_text()


DELETE = {
    "flock": "rm -r $T/locks",
    "redis": "redis-cli EVAL \"return redis.call('DEL', unpack(redis.call('KEYS', ARGV[1])))\" 0 \"$KEY*\" >/dev/null",
    "postgresql": 'sql "delete from cronlock returning 1" >/dev/null',
}


def test_o74_state_deleted_between_runs(sh, store):
    """Changes nothing for the next run."""
    script = f"cronlock o2 -- true; echo first=$?; {DELETE[store]}; cronlock o2 -- true; echo rc=$?"
    if store == "postgresql":
        script += '; sql "drop table cronlock" 2>/dev/null; cronlock o2 -- true; echo table=$?; '
        script += 'sql "drop table cronlock_runs" 2>/dev/null; cronlock o2 -- true; echo runs=$?'
    done = sh.run(script, KEY=key(sh, "o2"))
    assert (done["first"], done["rc"]) == ("0", "0")
    if store == "postgresql":
        assert (done["table"], done["runs"]) == ("0", "0")


def test_o74_state_deleted_during_a_run_is_loss(sh, store):
    """Nobody can tell whose the lock is now: 76, one line, and nothing of the job left; the next one runs."""
    done = sh.run(
        f"""
        cronlock --ttl 3 o2 -- sh -c 'setsid sleep 296.$M & touch $T/in; wait' & w=$!
        await test -e $T/in
        {DELETE[store]}
        timed rc wait $w
        echo left=$(pgrep -fxc "sleep 296.$M")
        timed next cronlock o2 -- true
        """,
        KEY=key(sh, "o2"),
    )
    assert (done["rc"], done["left"], done["next"]) == ("76", "0", "0")
    assert done.took("rc") < 3 + SLACK
    assert done.err.count("\n") == 1
    assert "lost" in done.err
