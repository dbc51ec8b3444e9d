"""Stores that restart, freeze, forget, fail over or fall silent under a running command: never two, or it is told in time.

Everything through the installed command and on real servers; the sentences about each store are in docs/guarantees.md.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

import fixtures_postgresql
from cronlock import local
from cronlock.backends import postgresql
from cronlock.model import Busy
from cronlock.testing import finished, grant, held, soon
from fixtures_postgresql import Postgres
from fixtures_redis import Proxy, RedisServer
from fixtures_store import Started, alive, until

Start = Callable[..., Started]
Finish = Callable[..., tuple[int, str, str]]

SLACK = 2.0  # seconds that a busy machine may add
FENCE = ("sh", "-c", "echo $CRONLOCK_RUN_FENCE")


class Job:
    """A holder whose tree is two processes that TERM does not end, one of them in a session of its own; `over()` ends it with 0."""

    def __init__(self, start: Start, directory: Path, name: str, *options: str, backend: str, word: str = "job") -> None:
        self._at = directory / word
        self._at.mkdir()
        stay = 'trap "" TERM; echo $$ > $AT/PID.new; mv $AT/PID.new $AT/PID; until [ -e $AT/over ]; do sleep .05; done'
        script = f"exec 2>/dev/null; setsid sh -c '{stay.replace('PID', 'far')}' & {stay.replace('PID', 'near')}; wait"
        self.said = self._at / "err"
        with self.said.open("w") as err:
            self.cronlock = start(*options, name, "--", "sh", "-c", script, backend=backend, env={"AT": str(self._at)}, stderr=err)

    def running(self) -> Job:
        until(lambda: all((self._at / which).exists() for which in ("near", "far")))
        self.pids = [int((self._at / which).read_text()) for which in ("near", "far")]
        return self

    @property
    def gone(self) -> bool:
        return not any(alive(pid) for pid in self.pids)

    @property
    def unharmed(self) -> bool:
        return all(alive(pid) for pid in self.pids) and self.cronlock.poll() is None

    @property
    def err(self) -> str:
        return self.said.read_text()

    def over(self) -> int:
        (self._at / "over").touch()
        return self.cronlock.wait(30)

    def everybody(self) -> list[int]:
        return [self.cronlock.pid, self.cronlock.guard, *self.pids]


@pytest.fixture
def job(start: Start, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """job(NAME, *options, backend=…, word=…): running, and its helper ends with the test."""
    made: list[Job] = []

    def go(name: str, *options: str, **kw: str) -> Job:
        made.append(Job(start, tmp_path, name, *options, **kw))
        return made[-1].running()

    yield go
    for one in made:
        (one.said.parent / "over").touch()
        for pid in getattr(one, "pids", []):
            if alive(pid) and "AT=" + str(one.said.parent) in Path(f"/proc/{pid}/environ").read_text():
                os.kill(pid, signal.SIGKILL)


def told(one: Job, *words: str) -> Callable[[], bool]:
    return lambda: any(word in one.err for word in words)


# what `regained` (it was taken again) and `renewed` (the store answers again) say
AGAIN = ("held again", "held all the time")


# -- the fence


@pytest.mark.parametrize("fault", ["emptied", "restarted"])
def test_the_fence_grows_over_a_restarted_redis(own_redis: RedisServer, finish: Finish, fault: str) -> None:
    fences = []
    for _ in range(3):
        status, out, err = finish("j", "--", *FENCE, backend=own_redis.url())
        assert (status, err) == (0, "")
        fences.append(int(out))
        own_redis.restart(empty=fault == "emptied")
        assert own_redis.cli("EXISTS", "cronlock:j\x1fstate") == (fault != "emptied")
    assert fences == sorted(set(fences))


def test_the_fence_grows_over_a_crashed_postgresql_and_a_lost_table(own_postgresql: Postgres, finish: Finish) -> None:
    fences = []
    for fault in ("crash", "lose", "nothing"):
        status, out, err = finish("j", "--", *FENCE, backend=own_postgresql.url())
        assert (status, err.count("\n")) == (0, err.count("password"))
        fences.append(int(out))
        if fault == "crash":
            own_postgresql.restart("immediate")
        elif fault == "lose":
            with own_postgresql.admin() as admin:
                admin.execute("drop table cronlock, cronlock_runs")
    assert fences == sorted(set(fences))


def test_the_fence_grows_over_a_removed_state_file(tmp_path: Path, finish: Finish) -> None:
    fences = []
    for _ in range(3):
        status, out, err = finish("j", "--", *FENCE, backend=f"flock://{tmp_path}/locks")
        assert (status, err) == (0, "")
        fences.append(int(out))
        shutil.rmtree(tmp_path / "locks")
    assert fences == sorted(set(fences))


# -- PostgreSQL


@pytest.fixture
def admin(postgresql_server: Postgres, postgresql_database: str) -> Iterator[psycopg.Connection[Any]]:
    with postgresql_server.admin(postgresql_database) as connection:
        yield connection


def sessions(admin: psycopg.Connection[Any]) -> list[int]:
    rows = admin.execute("select pid from pg_stat_activity where datname = current_database() and application_name like 'cronlock%'")
    return [pid for (pid,) in rows]


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_restart_hands_the_lock_to_nobody(
    own_postgresql: Postgres, job: Callable[..., Job], start: Start, finish: Finish, tmp_path: Path, mode: str
) -> None:
    url = own_postgresql.url()
    holder = job("j", "--ttl", "20", backend=url)
    waiter = start("--wait", "60", "j", "touch", str(tmp_path / "second"), backend=url)
    with own_postgresql.admin() as admin:
        until(lambda: admin.execute("select from pg_stat_activity where wait_event = 'advisory'").rowcount)
    own_postgresql.restart(mode)
    until(told(holder, *AGAIN))
    assert holder.unharmed
    assert waiter.poll() is None
    assert finish("j", "true", backend=url)[0] == 75
    with own_postgresql.admin() as admin:  # it waits for the lock again, not only for time to pass
        until(lambda: admin.execute("select from pg_stat_activity where wait_event = 'advisory'").rowcount)
    assert waiter.poll() is None and not (tmp_path / "second").exists()
    assert holder.over() == 0
    assert waiter.end()[0] == 0
    assert (tmp_path / "second").exists()
    assert "Traceback" not in holder.err and "lost" not in holder.err


@pytest.mark.parametrize("waited_for", [False, True], ids=["nobody waits", "somebody waits"])
def test_a_terminated_session_is_noticed_at_once(
    postgresql_url: str, admin: psycopg.Connection[Any], job: Callable[..., Job], start: Start, waited_for: bool
) -> None:
    """The socket is watched: a ttl of two minutes is renewed every 40 s only."""
    holder = job("j", "--ttl", "120", backend=postgresql_url)
    (session,) = sessions(admin)
    waiter = start("--wait", "60", "j", "true", backend=postgresql_url) if waited_for else None
    if waiter:
        until(lambda: admin.execute("select from pg_stat_activity where wait_event = 'advisory'").rowcount)
    noticed = []
    for _ in range(3):
        said = holder.err.count("\n")
        admin.execute("select pg_terminate_backend(%s)", [session])
        began = time.monotonic()
        until(lambda said=said: holder.err.count("\n") > said)
        noticed.append(time.monotonic() - began)
        session = until(lambda: holders(admin))[0]
        assert holder.unharmed
        assert waiter is None or waiter.poll() is None
    assert min(noticed) < 1
    assert max(noticed) < 1 + SLACK
    lines = holder.err.splitlines()
    assert len(lines) == 3 and all(any(word in line for word in AGAIN) for line in lines)
    assert holder.over() == 0
    assert waiter is None or waiter.end()[0] == 0


def holders(admin: psycopg.Connection[Any]) -> list[int]:
    """The sessions that have an advisory lock."""
    rows = admin.execute(
        "select pid from pg_locks where locktype = 'advisory' and granted"
        " and database = (select oid from pg_database where datname = current_database())"
    )
    return [pid for (pid,) in rows]


def test_the_guard_holds_the_new_session_after_a_reconnect(
    postgresql_url: str, admin: psycopg.Connection[Any], job: Callable[..., Job]
) -> None:
    """It is given the new socket whatever number that has: the same open sockets in both processes."""
    holder = job("j", "--ttl", "120", backend=postgresql_url)
    (session,) = sessions(admin)

    def sockets(pid: int) -> set[str]:
        found = (os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd"))
        return {target for target in found if target.startswith("socket:")}

    def connected() -> set[str]:
        """Inodes of TCP sockets that are established."""
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return {f"socket:[{row[9]}]" for row in rows if row[3] == "01"}

    def shared() -> set[str]:
        return sockets(holder.cronlock.guard) & sockets(holder.cronlock.pid) & connected()

    until(shared)
    held = len(sockets(holder.cronlock.guard))
    admin.execute("select pg_terminate_backend(%s)", [session])
    until(lambda: [pid for pid in holders(admin) if pid != session])
    until(shared, 5)
    assert len(sockets(holder.cronlock.guard)) == held  # the old one is closed


def test_a_row_taken_by_another_ends_the_run(postgresql_url: str, admin: psycopg.Connection[Any], job: Callable[..., Job]) -> None:
    """As an operator would: TERM, and KILL after the grace, for the whole tree."""
    holder = job("j", "--ttl", "4", "--kill-after", "20", backend=postgresql_url)
    admin.execute("update cronlock set token = 'operator', expires = clock_timestamp() + interval '1min'")
    until(told(holder, "lock lost"), 4 / 3 + SLACK + 5)
    began = time.monotonic()
    until(lambda: holder.gone)
    assert time.monotonic() - began < 1 + 1 + SLACK  # grace = ttl / 4
    assert holder.cronlock.wait(30) == 76
    assert holder.err.count("\n") == 1
    assert admin.execute("select token from cronlock").fetchone() == ("operator",)


def test_a_dead_machines_lock_is_free_after_its_ttl(
    postgresql_server: Postgres, postgresql_database: str, admin: psycopg.Connection[Any], job: Callable[..., Job], start: Start
) -> None:
    """Everything of it stops at once, and its connection says nothing any more: the server ends the session, the row runs out."""
    proxy = fixtures_postgresql.Proxy(postgresql_server.port)
    try:
        url = f"postgresql://postgres@127.0.0.1:{proxy.port}/{postgresql_database}?lock_mode=session"
        holder = job("j", "--ttl", "4", backend=url)
        waiter = start("--wait", "60", "j", "true", backend=postgresql_server.url(postgresql_database))
        until(lambda: admin.execute("select from pg_stat_activity where wait_event = 'advisory'").rowcount)
        proxy.hold()
        for pid in reversed(holder.everybody()):
            os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        assert len(holders(admin)) == 1  # nobody has told the server
        assert waiter.end()[0] == 0
        assert time.monotonic() - began < 4 + 1.5 + SLACK
    finally:
        proxy.close()


def test_three_hundred_leases_on_a_server_of_a_hundred_connections(postgresql_url: str, admin: psycopg.Connection[Any]) -> None:
    """In lease mode no connection is held while a command runs."""
    if int(admin.execute("show max_connections").fetchone()[0]) > 100:
        pytest.skip("this server has more than the default's hundred connections")
    backends = [postgresql.connect(postgresql_url + "?lock_mode=lease") for _ in range(300)]
    with ThreadPoolExecutor(12) as pool:
        leases = list(pool.map(lambda i: held(backends[i], f"job{i}", ttl=60), range(300)))
        assert len(leases) == 300
        assert admin.execute("select count(*) from cronlock where expires > clock_timestamp()").fetchone() == (300,)
        until(lambda: not sessions(admin))
        list(pool.map(lambda lease: lease.renew(soon()), leases))
        late = postgresql.connect(postgresql_url)
        assert all(isinstance(late.try_acquire(grant(f"job{i}"), soon()), Busy) for i in range(0, 300, 30))
        late.close()
        list(pool.map(lambda lease: lease.release(finished(lease), soon()), leases))
    assert admin.execute("select count(*) from cronlock_runs").fetchone() == (300,)
    for backend in backends:
        backend.close()


# -- a server that answers nothing


class Frozen:
    """A server of either kind that can be frozen."""

    def __init__(self, server: Postgres | RedisServer) -> None:
        self._server, self.url, self._frozen = server, server.url(), list[int]()

    def freeze(self) -> None:
        self._frozen = self._server.processes() if isinstance(self._server, Postgres) else [self._server.pid]
        for pid in self._frozen:
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in self._frozen:
            os.kill(pid, signal.SIGCONT)
        self._frozen = []


@pytest.fixture(params=["postgresql", "redis"])
def freezer(request: pytest.FixtureRequest) -> Iterator[Frozen]:
    frozen = Frozen(request.getfixturevalue(f"own_{request.param}"))
    yield frozen
    frozen.thaw()


def test_a_frozen_server_stops_the_command_before_the_lease_is_over(freezer: Frozen, job: Callable[..., Job], finish: Finish) -> None:
    holder = job("j", "--ttl", "4", backend=freezer.url)
    freezer.freeze()
    began = time.monotonic()
    until(lambda: holder.gone)
    assert time.monotonic() - began < 4  # nothing may be added: it is the guard that keeps time
    assert holder.cronlock.wait(30) == 76
    assert time.monotonic() - began < 4 + 5 + SLACK  # a release is tried for 5 s
    assert holder.err.count("lock lost") == 1 and "Traceback" not in holder.err
    tick = f"{freezer.url}{'&' if '?' in freezer.url else '?'}connect_timeout=1"
    assert finish("j", "true", backend=tick)[0] == 69
    freezer.thaw()
    until(lambda: finish("j", "true", backend=freezer.url)[0] == 0)


@pytest.fixture
def crowd() -> Iterator[None]:
    """So many that want a processor that this host counts as crowded; so nice that they take little of it."""
    spin = ["nice", "-n", "19", "sh", "-c", "while :; do :; done"]
    many = [subprocess.Popen(spin) for _ in range(local.CROWD * (os.cpu_count() or 1) + 10)]
    try:
        until(local.crowded)
        yield
    finally:
        for one in many:
            one.kill()
        for one in many:
            one.wait()


def test_on_a_crowded_host_a_store_that_says_nothing_is_asked_for_longer(freezer: Frozen, crowd: None, start: Start) -> None:
    freezer.freeze()
    asked = start("j", "true", backend=f"{freezer.url}{'&' if '?' in freezer.url else '?'}connect_timeout=2")
    with pytest.raises(subprocess.TimeoutExpired):
        asked.wait(4)
    freezer.thaw()
    assert asked.end() == (0, "", "")


def test_a_short_freeze_of_the_server_costs_nothing(freezer: Frozen, job: Callable[..., Job], start: Start, finish: Finish) -> None:
    holder = job("j", "--ttl", "12", backend=freezer.url)
    waiter = start("--wait", "60", "j", "true", backend=freezer.url)
    freezer.freeze()
    until(told(holder, "without an answer"), 12)
    freezer.thaw()
    until(told(holder, *AGAIN))
    assert holder.unharmed
    assert waiter.poll() is None
    assert finish("j", "true", backend=freezer.url)[0] == 75
    assert holder.over() == 0
    assert waiter.end()[0] == 0
    assert "lost" not in holder.err


# -- Redis


def test_an_emptied_restart_is_noticed_at_once(own_redis: RedisServer, job: Callable[..., Job], finish: Finish) -> None:
    """The connection is watched: of a ttl of two minutes only the grace is needed, and that is 30 s or --kill-after."""
    holder = job("j", "--ttl", "120", "--kill-after", "1", backend=own_redis.url())
    own_redis.restart(empty=True)
    began = time.monotonic()
    until(lambda: holder.gone)
    assert time.monotonic() - began < 1 + 1 + SLACK
    assert holder.cronlock.wait(30) == 76
    lines = holder.err.splitlines()  # the first: it could not connect while the server was down
    assert len(lines) <= 2 and "lock lost" in lines[-1]
    assert own_redis.cli("KEYS", "*") == []
    assert finish("j", "true", backend=own_redis.url())[0] == 0


class Failover:
    """A primary, a replica that gets nothing any more after `lag()`, and an address that follows the switch."""

    def __init__(self, start_redis: Callable[..., RedisServer], address: Callable[[int], Proxy]) -> None:
        self.primary = start_redis("--repl-diskless-sync-delay", "0")
        self._link = fixtures_postgresql.Proxy(self.primary.port)  # any TCP will do
        self.replica = start_redis("--replicaof", "127.0.0.1", str(self._link.port))
        self._address = address(self.primary.port)
        self.url = self.primary.url(port=self._address.port)
        until(lambda: "master_link_status:up" in self.replica.cli("INFO", "replication"), 30)

    def in_step(self) -> None:
        until(lambda: self.replica.cli("GET", "cronlock:j\x1fstate") == self.primary.cli("GET", "cronlock:j\x1fstate"))

    def lag(self) -> None:
        """A link that has frozen: the primary goes on, and nobody is told."""
        self._link.hold()

    def promote(self) -> None:
        self.replica.cli("REPLICAOF", "NO", "ONE")

    def switch(self) -> None:
        """The old primary is dead, and its address leads to the new one."""
        self._address.target = self.replica.port
        self.primary.stop()

    def end(self) -> None:
        self._link.close()
        self.primary.stop()
        self.replica.stop()


@pytest.fixture
def failover(start_redis: Callable[..., RedisServer], redis_proxy: Callable[[int], Proxy]) -> Iterator[Failover]:
    made = Failover(start_redis, redis_proxy)
    yield made
    made.end()


def test_a_grant_that_the_promoted_replica_missed_is_regained(failover: Failover, job: Callable[..., Job], finish: Finish) -> None:
    """The replica's last grant is the one that this run replaced, so nobody else has had the lock: one line, and it is held there."""
    assert finish("j", "true", backend=failover.url)[0] == 0
    failover.in_step()
    failover.lag()
    holder = job("j", "--ttl", "60", backend=failover.url)
    assert failover.replica.cli("EXISTS", "cronlock:j") == 0
    failover.promote()
    failover.switch()
    until(told(holder, "held again"))
    assert holder.unharmed
    assert failover.replica.cli("EXISTS", "cronlock:j") == 1
    assert finish("j", "true", backend=failover.url)[0] == 75
    assert holder.over() == 0
    assert holder.err.count("\n") == 1
    assert finish("j", "true", backend=failover.url)[0] == 0


def test_a_grant_of_a_replica_that_never_heard_of_the_name_is_lost(failover: Failover, job: Callable[..., Job], finish: Finish) -> None:
    """No state says whose it was: that somebody had it meanwhile can't be ruled out."""
    failover.lag()
    holder = job("j", "--ttl", "60", "--kill-after", "1", backend=failover.url)
    failover.promote()
    failover.switch()
    began = time.monotonic()
    until(lambda: holder.gone)
    assert time.monotonic() - began < 1 + 1 + SLACK
    assert holder.cronlock.wait(30) == 76
    assert holder.err.count("\n") == 1 and "lock lost" in holder.err
    assert finish("j", "true", backend=failover.url)[0] == 0


def test_two_after_a_failover_end_with_one_that_is_told(failover: Failover, job: Callable[..., Job], finish: Finish) -> None:
    """Another host was let in by the promoted replica: the first run is told as soon as it meets it, and stops. The other goes on."""
    assert finish("j", "true", backend=failover.url)[0] == 0
    failover.in_step()
    failover.lag()
    first = job("j", "--ttl", "60", "--kill-after", "1", backend=failover.url, word="first")
    failover.promote()
    second = job("j", "--ttl", "60", backend=failover.replica.url(), word="second")  # the window that docs/guarantees.md names
    failover.switch()
    began = time.monotonic()
    until(lambda: first.gone)
    assert time.monotonic() - began < 1 + 1 + SLACK
    assert first.cronlock.wait(30) == 76
    assert first.err.count("\n") == 1 and "lock lost" in first.err
    assert second.unharmed and second.err == ""
    assert finish("j", "true", backend=failover.url)[0] == 75  # the first one's end has not freed the other's lock
    assert second.over() == 0


def test_an_evicted_lock_is_told(own_redis: RedisServer, job: Callable[..., Job], finish: Finish) -> None:
    """volatile-lru at maxmemory: a cache full of keys without expiry throws away lock and state."""
    holder = job("j", "--ttl", "3", backend=own_redis.url())
    used = int(dict(line.split(":", 1) for line in own_redis.cli("INFO", "memory").split("\r\n") if ":" in line)["used_memory"])
    own_redis.cli("CONFIG", "SET", "maxmemory-policy", "volatile-lru", "maxmemory", used + 100_000)
    began = time.monotonic()
    full = threading.Event()

    def fill() -> None:
        for number in range(100_000):
            if full.is_set():
                return
            try:
                own_redis.cli("SET", f"cache{number}", "x" * 5000)
            except redis.exceptions.ResponseError:  # OOM: nothing is left that it may throw away
                full.wait(0.05)

    filler = threading.Thread(target=fill)
    filler.start()
    try:
        until(told(holder, "lock lost"))
        assert time.monotonic() - began < 3 + SLACK
        until(lambda: holder.gone)
        assert holder.cronlock.wait(30) == 76
        assert "evicted" in holder.err and holder.err.count("\n") == 1
        assert own_redis.cli("INFO", "stats").partition("evicted_keys:")[2][:1] not in ("", "0")
        status, _, err = finish("j", "true", backend=own_redis.url())
        assert (status, err.count("\n")) == (69, 1)
        assert "memory" in err
    finally:
        full.set()
        filler.join(30)


def test_a_key_without_expiry_is_never_busy(own_redis: RedisServer, finish: Finish) -> None:
    """Nobody would ever end it: an error that names the key, and with --wait, too."""
    own_redis.cli("SET", "cronlock:j", "somebody")
    began = time.monotonic()
    for options in ((), ("--wait", "60")):
        status, out, err = finish(*options, "j", "echo", "ran", backend=own_redis.url())
        assert (status, out) == (78, "")
        assert "cronlock:j" in err and "no expiry" in err and err.count("\n") == 1
    assert time.monotonic() - began < 10
    assert own_redis.cli("GET", "cronlock:j") == "somebody"


def test_an_expiry_taken_from_the_holders_key_comes_back(own_redis: RedisServer, job: Callable[..., Job]) -> None:
    """PERSIST by hand, and the holder dies later: its renewals have set the expiry again."""
    holder = job("j", "--ttl", "3", backend=own_redis.url())
    assert own_redis.cli("PERSIST", "cronlock:j") == 1
    until(lambda: own_redis.cli("PTTL", "cronlock:j") > 0, 1 + SLACK)
    assert holder.unharmed
    assert holder.over() == 0
    assert own_redis.cli("EXISTS", "cronlock:j") == 0
