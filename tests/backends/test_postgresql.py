"""PostgreSQL: the contract, by libpq itself and by psycopg, and what only PostgreSQL can do wrong."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import pq

from cronlock import clock
from cronlock import state as states
from cronlock.backends import libpq, postgresql_session
from cronlock.backends.dial import Broken
from cronlock.backends.postgresql import PostgresLease, PostgreSQL, connect
from cronlock.errors import BackendError, ConfigError, CronlockError, Interrupted, LeaseLost, PermissionDenied, UsageError
from cronlock.model import Busy, Done
from cronlock.testing import COUNTER, HOLDER, BackendContract, finished, grant, held, poll, soon
from fixtures_postgresql import Postgres, Proxy, free_port
from fixtures_store import Listener

# one `connect`, one question: what the speed of a cron line is made of
ADVISORY = "select count(*) from pg_locks where locktype = 'advisory' and database = (select oid from pg_database where datname = %s)"


class TestPostgreSQL(BackendContract):
    @pytest.fixture
    def url(self, postgresql_url: str) -> str:
        return postgresql_url

    @pytest.fixture
    def dead_url(self) -> str:
        return f"postgresql://u:secret@127.0.0.1:{free_port()}/db"


@pytest.fixture
def by_psycopg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As where libpq itself can't be loaded: here, and in every Python that is started."""
    for name, theirs in (("OperationalError", psycopg.OperationalError), ("Conninfo", pq.Conninfo), ("PGconn", pq.PGconn)):
        monkeypatch.setattr(postgresql_session, name, theirs)
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['cronlock.backends.libpq'] = None\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.mark.usefixtures("by_psycopg")
class TestByPsycopg(TestPostgreSQL):
    increments = 20


class TestLeaseMode(TestPostgreSQL):
    @pytest.fixture
    def url(self, postgresql_url: str) -> str:
        return postgresql_url + "?lock_mode=lease"


@pytest.fixture(params=["libpq", "psycopg"])
def opened(request: pytest.FixtureRequest) -> Iterator[Callable[[str], PostgreSQL]]:
    """Opens a URL, once by libpq itself, once by psycopg."""
    if request.param == "psycopg":
        request.getfixturevalue("by_psycopg")
    backends: list[PostgreSQL] = []

    def another(url: str) -> PostgreSQL:
        backends.append(connect(url))
        return backends[-1]

    yield another
    for backend in backends:
        backend.close()


@pytest.fixture
def admin(postgresql_server: Postgres, postgresql_database: str) -> Iterator[psycopg.Connection[Any]]:
    with postgresql_server.admin(postgresql_database) as connection:
        yield connection


@pytest.fixture
def role(postgresql_server: Postgres, postgresql_database: str) -> Iterator[str]:
    """A role that may do nothing but log in."""
    name = f"r{uuid.uuid4().hex[:10]}"
    with postgresql_server.admin() as top:
        top.execute(f"create role {name} login password 'p'")
    yield name
    with postgresql_server.admin() as top:
        with postgresql_server.admin(postgresql_database) as there:
            there.execute(f"drop owned by {name}")
        top.execute(f"drop role {name}")


def sessions(admin: psycopg.Connection[Any]) -> list[tuple[int, str, str, bool]]:
    return admin.execute(
        "select pid, application_name, state, xact_start is null from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid()"
    ).fetchall()


# -- the table


def test_twelve_make_the_table_at_once(postgresql_url: str) -> None:
    code = (
        "import sys\nfrom cronlock import testing\nfrom cronlock.registry import open_backend\nb = open_backend(sys.argv[1])\n"
        "sys.stdin.read()\nl = testing.held(b, sys.argv[2]); l.release(testing.finished(l), testing.soon())"
    )
    workers = [
        subprocess.Popen([sys.executable, "-c", code, postgresql_url, f"job{i}"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for i in range(12)
    ]
    errors = []

    def go(worker: subprocess.Popen[str]) -> None:
        errors.append(worker.communicate(timeout=60)[1])

    threads = [threading.Thread(target=go, args=(w,)) for w in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [""] * 12  # no notice "already exists" either
    assert [w.returncode for w in workers] == [0] * 12


def test_table_and_prefix_are_the_users(postgresql_url: str, admin: psycopg.Connection[Any], opened: Callable[[str], PostgreSQL]) -> None:
    admin.execute("create schema ops")
    backend = opened(postgresql_url + "?table=ops.locks&prefix=shop:")
    held(backend, "a job")
    assert admin.execute("select name from ops.locks").fetchall() == [("shop:a job",)]
    assert list(backend.names(soon())) == ["a job"]
    held(opened(postgresql_url + "?table=ops.locks"), "a job")  # another prefix, another lock
    with pytest.raises(ConfigError, match="nowhere"):
        opened(postgresql_url + "?table=nowhere.locks").try_acquire(grant("j"), soon())


def test_a_newer_row_is_refused_in_words(postgresql_url: str, admin: psycopg.Connection[Any], opened: Callable[[str], PostgreSQL]) -> None:
    lease = held(opened(postgresql_url), "j")
    lease.release(finished(lease), soon())
    admin.execute("update cronlock set version = 9")
    with pytest.raises(ConfigError, match="update cronlock"):
        opened(postgresql_url).try_acquire(grant("j"), soon())
    assert opened(postgresql_url).status("j", soon()).detail == "its row has format 9: update cronlock on this host"
    assert admin.execute(ADVISORY, [admin.info.dbname]).fetchone() == (0,)


def test_a_role_that_may_make_no_table_has_the_advisory_lock(
    postgresql_server: Postgres, postgresql_database: str, role: str, opened: Callable[[str], PostgreSQL]
) -> None:
    url = postgresql_server.url(postgresql_database, role, "p")
    backend, other = opened(url), opened(url)
    lease = held(backend, "j")
    assert abs(lease.run.fence / 1e6 - time.time()) < 3600
    assert isinstance(other.try_acquire(grant("j"), soon()), Busy)
    assert other.status("j", soon()).held
    lease.renew(soon())
    with pytest.raises(LeaseLost):
        lease.regain(soon())
    for asked in (grant("k", label="1h/a"), grant("k", min_hold=5)):
        with pytest.raises(ConfigError, match="create table if not exists"):
            other.try_acquire(asked, soon())
    lease.release(finished(lease), soon())
    again = held(other, "j")
    assert again.run.fence > lease.run.fence
    with postgresql_server.admin(postgresql_database) as admin:
        admin.execute("select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory'")
    assert again.watch_fd is not None
    assert select.select([again.watch_fd], [], [], 5)[0]
    with pytest.raises(LeaseLost):
        again.renew(soon())


@pytest.mark.parametrize("there", [True, False])
def test_a_role_without_rights_on_the_table_is_told_what_to_grant(
    postgresql_server: Postgres, postgresql_database: str, role: str, opened: Callable[[str], PostgreSQL], there: bool
) -> None:
    with postgresql_server.admin(postgresql_database) as admin:
        admin.execute("create schema locks")
        if there:
            held(opened(postgresql_server.url(postgresql_database, table="locks.mine")), "j")
        else:
            admin.execute(f"grant usage on schema locks to {role}")
        stranger = opened(postgresql_server.url(postgresql_database, role, "p", table="locks.mine"))
        with pytest.raises(PermissionDenied if there else ConfigError, match="grant select") as caught:
            stranger.try_acquire(grant("k", label="1h/a"), soon())
        advice = str(caught.value).partition("run: ")[2].replace("ROLE", role)
        for statement in advice.split("; "):
            admin.execute(statement.encode())
    lease = held(stranger, "k", label="1h/a")  # and the advice is enough
    lease.renew(soon())
    lease.release(finished(lease), soon())
    assert len(stranger.history("k", soon())) == 1


@pytest.mark.parametrize(
    "fault", ["alter before drop default", "rename claims to c", "drop constraint cronlock_pkey", "alter run type text"]
)
def test_a_table_that_is_not_as_ours_is_shown_as_it_should_be(
    postgresql_url: str, admin: psycopg.Connection[Any], opened: Callable[[str], PostgreSQL], fault: str
) -> None:
    held(opened(postgresql_url), "other")
    admin.execute(f"alter table cronlock {fault}".encode())
    with pytest.raises(ConfigError, match="the tables should be: create table"):
        opened(postgresql_url).try_acquire(grant("j"), soon())


@pytest.mark.parametrize(
    ("fault", "kind", "told"),
    [
        ("drop table cronlock_runs", ConfigError, "the tables should be: "),
        ("alter table cronlock_runs enable row level security", PermissionDenied, "have the owner run: "),
    ],
)
def test_a_lock_is_not_lost_where_only_the_history_is(
    postgresql_url: str,
    admin: psycopg.Connection[Any],
    role: str,
    opened: Callable[[str], PostgreSQL],
    fault: str,
    kind: type[CronlockError],
    told: str,
) -> None:
    held(opened(postgresql_url), "other")  # makes the tables
    admin.execute(f"grant select, insert, update on cronlock to {role}".encode())
    admin.execute(f"grant select, insert, delete on cronlock_runs to {role}".encode())
    job = opened(postgresql_url.replace("postgres:top", f"{role}:p"))
    lease = held(job, "j")
    admin.execute(fault.encode())
    with pytest.raises(kind, match=told) as caught:
        lease.release(finished(lease), soon())
    for statement in str(caught.value).partition(told)[2].replace("ROLE", role).split("; "):
        admin.execute(statement.encode())
    lease.release(finished(lease), soon())
    assert len(job.history("j", soon())) == 1


# -- the lease


def test_one_question_before_and_one_after(
    postgresql_server: Postgres, postgresql_database: str, postgresql_url: str, postgresql_proxy: Proxy, opened: Callable[[str], PostgreSQL]
) -> None:
    first = held(opened(postgresql_url), "other")  # makes the table
    first.release(finished(first), soon())
    proxied = f"postgresql://postgres@127.0.0.1:{postgresql_proxy.port}/{postgresql_database}?sslmode=disable&gssencmode=disable"
    lease = held(opened(proxied), "j", label="1h/a", min_hold=0.1)
    assert (postgresql_proxy.connections, postgresql_proxy.questions) == (1, 1)
    assert isinstance(opened(proxied).try_acquire(grant("j"), soon()), Busy)
    assert (postgresql_proxy.connections, postgresql_proxy.questions) == (2, 2)
    lease.release(finished(lease), soon())
    assert (postgresql_proxy.connections, postgresql_proxy.questions) == (2, 3)


def test_the_holding_session_is_idle_and_says_what_it_is(
    postgresql_url: str, admin: psycopg.Connection[Any], opened: Callable[[str], PostgreSQL]
) -> None:
    name = "nightly-report " + "ü" * 60
    lease = held(opened(postgresql_url), name, ttl=7)
    ((pid, application, state, no_transaction),) = sessions(admin)
    assert application.startswith("cronlock nightly-report")
    assert (state, no_transaction) == ("idle", True)
    assert (
        admin.execute("select hashtextextended(name, 0) & 4294967295 from cronlock").fetchone()
        == admin.execute("select objid::bigint from pg_locks where locktype = 'advisory' and pid = %s", [pid]).fetchone()
    )
    assert lease.fds and lease.watch_fd == lease.fds[0]
    assert not os.get_inheritable(lease.fds[0])
    lease.release(finished(lease), soon())
    poll(lambda: sessions(admin) == [])


def test_lease_mode_holds_no_connection(postgresql_url: str, admin: psycopg.Connection[Any], opened: Callable[[str], PostgreSQL]) -> None:
    lease = held(opened(postgresql_url + "?lock_mode=lease"), "j")
    assert list(lease.fds) == [] and lease.watch_fd is None
    poll(lambda: sessions(admin) == [])
    lease.renew(soon())
    poll(lambda: sessions(admin) == [])
    assert admin.execute(ADVISORY, [admin.info.dbname]).fetchone() == (0,)


def test_the_modes_exclude_each_other(postgresql_url: str, opened: Callable[[str], PostgreSQL]) -> None:
    session, alone = opened(postgresql_url), opened(postgresql_url + "?lock_mode=lease")
    for one, other in ((session, alone), (alone, session)):
        lease = held(one, "j")
        assert isinstance(other.try_acquire(grant("j"), soon()), Busy)
        lease.release(finished(lease), soon())


def test_mixed_modes_lose_nothing(postgresql_url: str, tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")
    workers = [
        subprocess.Popen([sys.executable, "-c", COUNTER, postgresql_url + mode, "j", str(counter), "25"], stderr=subprocess.PIPE, text=True)
        for mode in ("?lock_mode=lease", "?lock_mode=session") * 4
    ]
    for worker in workers:
        assert worker.communicate(timeout=120)[1] == ""
    assert counter.read_text() == "200"


def test_a_role_whose_transactions_are_serializable_is_told_busy(
    postgresql_server: Postgres,
    postgresql_database: str,
    postgresql_url: str,
    admin: psycopg.Connection[Any],
    opened: Callable[[str], PostgreSQL],
) -> None:
    """Its server refuses (40001) to write what another transaction has written since, and that is no trouble with the store."""
    first = held(opened(postgresql_url), "j")  # makes the table
    first.release(finished(first), soon())
    admin.execute(f"alter database {postgresql_database} set default_transaction_isolation = 'repeatable read'")
    contender, answers = opened(postgresql_url + "?lock_mode=lease"), []
    with postgresql_server.admin(postgresql_database) as another, another.transaction():
        another.execute("update cronlock set expires = clock_timestamp() + interval '1min'")
        asking = threading.Thread(target=lambda: answers.append(contender.try_acquire(grant("j"), soon())))
        asking.start()
        poll(lambda: admin.execute("select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()").rowcount)
    asking.join()
    assert [type(answer) for answer in answers] == [Busy]


def test_a_lock_key_is_shared_with_scripts(
    postgresql_url: str, admin: psycopg.Connection[Any], opened: Callable[[str], PostgreSQL]
) -> None:
    backend = opened(postgresql_url + "?lock_key=12345")
    lease = held(backend, "j")
    assert admin.execute("select pg_try_advisory_lock(12345)").fetchone() == (False,)
    lease.renew(soon())
    lease.release(finished(lease), soon())
    assert admin.execute("select pg_try_advisory_lock(12345)").fetchone() == (True,)
    assert isinstance(backend.try_acquire(grant("j"), soon()), Busy)
    assert f"process {admin.info.backend_pid}" in backend.status("j", soon()).detail
    assert admin.execute("select to_regclass('public.cronlock')").fetchone() == (None,)  # no table is made
    with pytest.raises(ConfigError, match="lock_key"):
        backend.try_acquire(grant("j", label="1h/a"), soon())
    other = held(opened(postgresql_url), "j")
    other.release(finished(other), soon())
    assert (list(backend.names(soon())), list(backend.history("j", soon()))) == ([], [])  # that was another lock


def test_a_script_holding_the_named_key_is_respected(
    postgresql_url: str, admin: psycopg.Connection[Any], opened: Callable[[str], PostgreSQL]
) -> None:
    for url in (postgresql_url, postgresql_url + "?lock_mode=lease"):
        admin.execute("select pg_advisory_lock(hashtextextended('cronlock:j', 0))")
        backend = opened(url)
        assert backend.try_acquire(grant("j"), soon()) == Busy()
        admin.execute("select pg_advisory_unlock_all()")
        lease = held(backend, "j")
        lease.release(finished(lease), soon())


def test_a_terminated_session_is_replaced_and_the_row_keeps_the_lease(
    postgresql_url: str, admin: psycopg.Connection[Any], opened: Callable[[str], PostgreSQL]
) -> None:
    lease, other = held(opened(postgresql_url), "j", ttl=20), opened(postgresql_url)
    ((pid, *_),) = sessions(admin)
    copies = [os.dup(fd) for fd in lease.fds]  # as the guard's
    admin.execute("select pg_terminate_backend(%s)", [pid])
    assert lease.watch_fd is not None
    assert select.select([lease.watch_fd], [], [], 5)[0]
    assert isinstance(other.try_acquire(grant("j"), soon()), Busy)
    lease.renew(soon())
    assert pid not in [s[0] for s in sessions(admin)]
    assert admin.execute(ADVISORY, [admin.info.dbname]).fetchone() == (1,)  # taken again
    assert isinstance(other.try_acquire(grant("j"), soon()), Busy)
    lease.release(finished(lease), soon())
    for copy in copies:
        os.close(copy)


def test_a_lingering_session_of_ours_is_shut_and_its_lock_taken_again(
    postgresql_server: Postgres,
    postgresql_database: str,
    postgresql_proxy: Proxy,
    admin: psycopg.Connection[Any],
    opened: Callable[[str], PostgreSQL],
) -> None:
    """A firewall forgets the connection: the server's session lives on, and still has the advisory lock."""
    url = f"postgresql://postgres@127.0.0.1:{postgresql_proxy.port}/{postgresql_database}?sslmode=disable&gssencmode=disable"
    lease = held(opened(url), "j", ttl=30)
    ((pid, *_),) = sessions(admin)
    postgresql_proxy.hold()
    started = clock.now()
    with pytest.raises(BackendError):
        lease.renew(clock.now() + 1)
    assert 0.8 < clock.now() - started < 1.5
    assert pid in [s[0] for s in sessions(admin)]
    postgresql_proxy.pass_on()
    poll(lambda: lease.renew(soon(2)) or (admin.execute(ADVISORY, [admin.info.dbname]).fetchone() == (1,) and lease.fds))
    assert isinstance(opened(url).try_acquire(grant("j"), soon()), Busy)
    lease.release(finished(lease), soon())


def test_a_restart_lets_nobody_else_in(own_postgresql: Postgres, opened: Callable[[str], PostgreSQL]) -> None:
    lease = held(opened(own_postgresql.url()), "j", ttl=30)
    own_postgresql.restart("immediate")  # as after a crash
    other = opened(own_postgresql.url())
    assert isinstance(other.try_acquire(grant("j"), soon()), Busy)
    lease.renew(soon())
    assert isinstance(other.try_acquire(grant("j"), soon()), Busy)
    lease.release(finished(lease), soon())
    assert held(other, "j").run.fence > lease.run.fence


def test_a_frozen_server_is_unknown_in_time(own_postgresql: Postgres, opened: Callable[[str], PostgreSQL]) -> None:
    backend = opened(own_postgresql.url())
    lease = held(backend, "j", ttl=30)
    frozen = own_postgresql.freeze()
    try:
        for ask in (lambda until: opened(own_postgresql.url()).try_acquire(grant("k"), until), lease.renew):
            started = clock.now()
            with pytest.raises(BackendError, match="no answer in time"):
                ask(started + 0.8)
            assert clock.now() - started < 1.2
        started = clock.now()
        backend.abandon(grant("k"), started + 0.4)
        assert clock.now() - started < 0.8
    finally:
        own_postgresql.thaw(frozen)
    lease.renew(soon())


def test_a_release_whose_answer_was_lost_is_asked_again(postgresql_url: str, opened: Callable[[str], PostgreSQL]) -> None:
    backend = opened(postgresql_url)
    lease = held(backend, "j")
    for _ in range(2):
        lease.release(finished(lease), soon())
    assert len(backend.history("j", soon())) == 1


def test_an_operators_token_is_lost_and_not_regained(
    postgresql_url: str, admin: psycopg.Connection[Any], opened: Callable[[str], PostgreSQL]
) -> None:
    lease = held(opened(postgresql_url), "j")
    admin.execute("update cronlock set token = 'operator', expires = clock_timestamp()")
    for ask in (lease.renew, lease.regain):
        with pytest.raises(LeaseLost):
            ask(soon())
    with pytest.raises(LeaseLost):
        lease.release(finished(lease), soon())
    assert admin.execute("select token from cronlock").fetchone() == ("operator",)
    held(opened(postgresql_url), "j")


def test_a_deleted_row_is_lost(postgresql_url: str, admin: psycopg.Connection[Any], opened: Callable[[str], PostgreSQL]) -> None:
    for wipe in ("delete from cronlock", "drop table cronlock"):
        lease = held(opened(postgresql_url), "j")
        admin.execute(wipe)
        for ask in (lease.renew, lease.regain):
            with pytest.raises(LeaseLost):
                ask(soon())
        with pytest.raises(LeaseLost):
            lease.release(finished(lease), soon())
    held(opened(postgresql_url), "j")


def test_regained_where_the_state_is_mine_or_the_one_i_replaced(
    postgresql_url: str, admin: psycopg.Connection[Any], opened: Callable[[str], PostgreSQL]
) -> None:
    backend = opened(postgresql_url)
    first = held(backend, "j", label="1h/a")
    first.release(finished(first), soon())
    admin.execute("create table replica as table cronlock")
    lease = held(backend, "j", label="1h/b")
    admin.execute("update cronlock set expires = clock_timestamp()")  # frozen for too long, and nobody came
    with pytest.raises(LeaseLost):
        lease.renew(soon())
    lease.regain(soon())
    lease.renew(soon())
    assert admin.execute("select jsonb_array_length(claims) from cronlock").fetchone() == (2,)
    # failed over to a replica that had not heard of it
    admin.execute("delete from cronlock")
    admin.execute("insert into cronlock table replica")
    for expires, lost in (("clock_timestamp() + '1min'", (lease.renew, lease.regain)), ("'epoch'", (lease.renew,))):
        admin.execute(f"update cronlock set expires = {expires}".encode())
        for ask in lost:
            with pytest.raises(LeaseLost):
                ask(soon())
    lease.regain(soon())
    lease.renew(soon())
    assert admin.execute("select jsonb_array_length(claims) from cronlock").fetchone() == (2,)
    assert isinstance(opened(postgresql_url).try_acquire(grant("j"), soon()), Busy)
    lease.release(finished(lease), soon())
    assert isinstance(backend.try_acquire(grant("j", label="1h/b"), soon()), Done)
    assert held(backend, "j").run.fence > lease.run.fence


def test_the_server_ends_a_session_that_says_nothing_for_a_ttl(
    postgresql_url: str, admin: psycopg.Connection[Any], opened: Callable[[str], PostgreSQL]
) -> None:
    if admin.info.server_version < 140000:
        pytest.skip("idle_session_timeout came with 14")
    held(opened(postgresql_url), "j", ttl=0.5)
    started = clock.now()
    poll(lambda: not sessions(admin), 5)
    assert clock.now() - started < 2
    lease = held(opened(postgresql_url), "k", ttl=0.6)
    until = clock.now() + 1.5
    while clock.now() < until:  # but not one that is renewed
        lease.renew(soon())
        time.sleep(0.2)
    assert len(sessions(admin)) == 1


def test_two_that_vanished_are_both_in_the_history(postgresql_url: str, opened: Callable[[str], PostgreSQL]) -> None:
    backend, pids = opened(postgresql_url), []
    for _ in range(2):
        argv = [sys.executable, "-c", HOLDER, postgresql_url, "j", "0.7"]
        with poll(lambda argv=argv: _started(argv)) as holder:
            pids.append(holder.pid)
            holder.kill()
    for _ in range(2):
        lease = poll(lambda: None if isinstance(a := backend.try_acquire(grant("j"), soon()), (Busy, Done)) else a)
        lease.release(finished(lease), soon())
    runs = [(r.outcome, r.pid) for r in backend.history("j", soon())]
    assert runs == [("vanished", pids[0]), ("vanished", pids[1]), ("ok", os.getpid()), ("ok", os.getpid())]


def _started(argv: list[str]) -> subprocess.Popen[str] | None:
    holder = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert holder.stdout
    if holder.stdout.readline():
        return holder
    holder.communicate()
    return None


def test_an_abandoned_attempt_gives_its_label_and_its_min_hold_back(
    postgresql_url: str, admin: psycopg.Connection[Any], opened: Callable[[str], PostgreSQL]
) -> None:
    backend, other = opened(postgresql_url), opened(postgresql_url)
    first = held(backend, "j")
    first.release(finished(first), soon())
    asked = grant("j", label="1h/a", min_hold=60)
    assert not isinstance(backend.try_acquire(asked, soon()), (Busy, Done))
    backend.abandon(asked, soon())
    status = other.status("j", soon())
    assert status.run and (status.run.token, status.run.outcome) == (first.run.token, "ok")
    lease = held(opened(postgresql_url + "?lock_mode=lease"), "j", label="1h/a")
    assert lease.previous is None
    admin.execute("update cronlock set expires = 'epoch'")  # it vanishes
    asked = grant("j")
    assert not isinstance(backend.try_acquire(asked, soon()), (Busy, Done))
    for _ in range(2):
        backend.abandon(asked, soon())
    last = held(backend, "j")
    last.release(finished(last), soon())
    assert [run.token for run in backend.history("j", soon())] == [first.run.token, lease.run.token, last.run.token]


def test_a_claim_that_a_signal_broke_in_on_is_given_back_although_it_comes_later(
    postgresql_url: str, admin: psycopg.Connection[Any], opened: Callable[[str], PostgreSQL]
) -> None:
    held(opened(postgresql_url), "other")  # makes the table
    backend, other, asked = opened(postgresql_url), opened(postgresql_url), grant("j", label="1h/a", ttl=60)
    backend._spare = backend._open("j", soon())
    server_process = backend._spare.pid
    os.kill(server_process, signal.SIGSTOP)  # so busy that it has not come to it when the signal comes
    before = signal.signal(signal.SIGUSR1, lambda signum, _: (_ for _ in ()).throw(Interrupted(signum)))
    timers = [threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)), threading.Timer(0.6, os.kill, (server_process, signal.SIGCONT))]
    try:
        for timer in timers:
            timer.start()
        with pytest.raises(Interrupted):
            backend.try_acquire(asked, soon())
        backend.abandon(asked, soon())
    finally:
        for timer in timers:
            timer.join()
        signal.signal(signal.SIGUSR1, before)
    poll(lambda: server_process not in [s[0] for s in sessions(admin)])
    assert isinstance(lease := other.try_acquire(grant("j", label="1h/a"), soon()), PostgresLease), lease


def test_what_is_free_is_free_by_a_clock_set_back(
    postgresql_url: str, admin: psycopg.Connection[Any], opened: Callable[[str], PostgreSQL]
) -> None:
    """The server's own, or that of the standby which took over."""
    backend = opened(postgresql_url)
    lease = held(backend, "j")
    lease.release(finished(lease), soon())
    with pytest.raises(LeaseLost):
        backend.seize("j", finished(lease, "lost"), grant("j").run, soon())
    asked = grant("k")
    assert not isinstance(backend.try_acquire(asked, soon()), (Busy, Done))
    backend.abandon(asked, soon())
    assert admin.execute("select name from cronlock where expires > clock_timestamp() - interval '1 year'").fetchall() == []


def test_the_fence_grows_past_a_clock_set_back(
    postgresql_url: str, admin: psycopg.Connection[Any], opened: Callable[[str], PostgreSQL]
) -> None:
    backend, ahead = opened(postgresql_url), 4_000_000_000_123_457
    lease = held(backend, "j")
    shown = admin.execute("select fence, run->>'fence' from cronlock").fetchone()
    assert shown == (lease.run.fence, str(lease.run.fence))
    lease.release(finished(lease), soon())
    for stored, fence in ((ahead, ahead + 1), (ahead + 7, ahead + 8), (5, None)):
        admin.execute("update cronlock set fence = %s", [stored])
        lease = held(backend, "j", label=f"1h/{stored}")
        shown = admin.execute("select fence, run->>'fence', claims->-1->>'fence' from cronlock").fetchone()
        assert shown == (lease.run.fence, str(lease.run.fence), str(lease.run.fence))
        assert lease.run.fence == fence or (fence is None and abs(lease.run.fence / 1e6 - time.time()) < 3600)
        lease.release(finished(lease), soon())


def test_a_min_hold_by_a_clock_set_back_keeps_nobody_out(
    postgresql_url: str, admin: psycopg.Connection[Any], opened: Callable[[str], PostgreSQL]
) -> None:
    """As if it had been granted tomorrow: it is not over for a day, which nobody ever meant."""
    backend = opened(postgresql_url)
    for min_hold, granted in ((0, "-2 days"), (60, "0.9s")):  # the second finds a row; less than a second is as good as nothing
        lease = held(backend, "j", min_hold=min_hold)
        lease.release(finished(lease), soon())
        admin.execute(f"update cronlock set granted = clock_timestamp() + interval '{granted}'".encode())
    answer = backend.try_acquire(grant("j"), soon())
    assert isinstance(answer, Busy) and answer.held
    admin.execute("update cronlock set granted = granted + interval '1 day', held = held + interval '1 day'")
    held(backend, "j")


def test_the_statement_writes_what_the_rule_says(
    postgresql_url: str, admin: psycopg.Connection[Any], opened: Callable[[str], PostgreSQL]
) -> None:
    backend, told = opened(postgresql_url), states.State()
    for label in (*(f"1m/{i}" for i in range(103)), "", "1m/50", "1m/50", ""):
        asked = grant("j", label=label, retry_failed=True)
        told, lease = states.claim(told, asked, 0), backend.try_acquire(asked, soon())
        assert isinstance(told, states.State) and isinstance(lease, PostgresLease)
        lease.release(finished(lease, "failed"), soon())
        told = states.ended(told, finished(lease, "failed"))
    rows = admin.execute("select e->>'token' from cronlock, jsonb_array_elements(claims) with ordinality a (e, i) order by i").fetchall()
    assert [token for (token,) in rows] == [run.token for run in told.claims]


def test_bytes_that_are_no_text_are_kept_readable(postgresql_url: str, opened: Callable[[str], PostgreSQL]) -> None:
    backend = opened(postgresql_url)
    asked = grant("j \udcff")
    asked = asked.but(run=asked.run.but(command="echo \udcff '\\' \x01 ü 日本"))
    lease = backend.try_acquire(asked, soon())
    assert not isinstance(lease, (Busy, Done))
    lease.release(finished(lease), soon())
    assert [r.command for r in backend.history("j \udcff", soon())] == ["echo \\udcff '\\' \x01 ü 日本"]


def test_the_key_for_people_is_the_same_lock(
    postgresql_url: str, admin: psycopg.Connection[Any], opened: Callable[[str], PostgreSQL]
) -> None:
    backend, name = opened(postgresql_url), "it's mine"
    lock, _, row = backend.key(name).partition("; ")
    held(backend, name)
    assert admin.execute(lock.encode()).fetchone() == (False,)
    assert len(admin.execute(row.encode()).fetchall()) == 1


# -- waiting


def test_a_waiter_is_woken_at_once(postgresql_url: str, opened: Callable[[str], PostgreSQL]) -> None:
    backend, other, woken = opened(postgresql_url), opened(postgresql_url), []
    for _ in range(5):
        lease = held(backend, "j")
        assert isinstance(other.try_acquire(grant("j"), soon()), Busy)
        answers: list[Any] = []

        def wait(answers: list[Any] = answers) -> None:
            other.wait("j", soon())
            answers.append(other.try_acquire(grant("j"), soon()))
            answers.append(clock.now())

        waiter = threading.Thread(target=wait)
        waiter.start()
        time.sleep(0.2)  # let it queue: what is measured is the time from here
        released = clock.now()
        lease.release(finished(lease), soon())
        waiter.join(10)
        assert not isinstance(answers[0], (Busy, Done))
        woken.append(answers[1] - released)
        answers[0].release(finished(answers[0]), soon())
    print(f"woken after {', '.join(f'{w * 1000:.0f}' for w in woken)} ms")
    assert max(woken) < 0.2


def test_a_waiter_that_the_row_refuses_keeps_the_advisory_lock_from_nobody(
    postgresql_url: str, admin: psycopg.Connection[Any], opened: Callable[[str], PostgreSQL]
) -> None:
    held(opened(postgresql_url + "?lock_mode=lease"), "j")
    backend = opened(postgresql_url)
    backend.wait("j", soon())
    assert admin.execute(ADVISORY, [admin.info.dbname]).fetchone() == (1,)
    assert isinstance(backend.try_acquire(grant("j"), soon()), Busy)
    assert admin.execute(ADVISORY, [admin.info.dbname]).fetchone() == (0,)


def test_a_killed_waiter_does_not_stay_in_the_queue(
    postgresql_url: str, admin: psycopg.Connection[Any], opened: Callable[[str], PostgreSQL]
) -> None:
    if admin.info.server_version < 140000:
        pytest.skip("client_connection_check_interval came with 14")
    held(opened(postgresql_url), "j")
    code = (
        "import sys\nfrom cronlock import testing\nfrom cronlock.registry import open_backend\n"
        "open_backend(sys.argv[1]).wait('j', testing.soon(600))"
    )
    waiter = subprocess.Popen([sys.executable, "-c", code, postgresql_url])
    queued = "select count(*) from pg_stat_activity where datname = current_database() and wait_event = 'advisory'"
    poll(lambda: admin.execute(queued).fetchone() == (1,))
    waiter.kill()
    waiter.wait()
    poll(lambda: admin.execute(queued).fetchone() == (0,), 5)


def test_a_signal_ends_a_wait_and_leaves_nothing(
    postgresql_url: str, admin: psycopg.Connection[Any], opened: Callable[[str], PostgreSQL]
) -> None:
    lease = held(opened(postgresql_url), "j")
    before = signal.signal(signal.SIGUSR1, lambda signum, _: (_ for _ in ()).throw(Interrupted(signum)))
    try:
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1))
        timer.start()
        started = clock.now()
        with pytest.raises(Interrupted):
            opened(postgresql_url).wait("j", soon())
        assert clock.now() - started < 2
    finally:
        timer.cancel()
        signal.signal(signal.SIGUSR1, before)
    poll(lambda: len(sessions(admin)) == 1, 5)
    lease.release(finished(lease), soon())
    held(opened(postgresql_url), "j")


# -- the two ways to libpq


def test_which_libpq_is_loaded(by_psycopg: None) -> None:
    code = "from cronlock.backends import postgresql_session as s; print(s.PGconn.__module__); print(open('/proc/self/maps').read())"

    def loaded() -> tuple[str, set[str]]:
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
        module, _, maps = run.stdout.partition("\n")
        return module, {line.split()[-1] for line in maps.splitlines() if "/libpq" in line}

    module, files = loaded()
    assert module.startswith("psycopg")
    os.environ.pop("PYTHONPATH")
    assert loaded() == ("cronlock.backends.libpq", files)  # the very same file


def test_a_closed_session_is_broken_and_no_crash(opened: Callable[[str], PostgreSQL], postgresql_url: str) -> None:
    lease = held(opened(postgresql_url), "j")
    lease.session.close()
    with pytest.raises(Broken):
        lease.session.ask("select 1", (), soon())


def test_any_answer_is_read_as_text(opened: Callable[[str], PostgreSQL], postgresql_url: str, capfd: pytest.CaptureFixture[str]) -> None:
    session = held(opened(postgresql_url), "j").session
    assert session.ask("select $1::text, null, '', 7 union all select 'b', '1', $2, null", ("ü", None), soon()) == [
        ["ü", None, "", "7"],
        ["b", "1", None, None],
    ]
    many = session.ask("select repeat('x', 100000) from generate_series(1, $1::int)", (50,), soon())
    assert [len(row[0]) for row in many] == [100000] * 50
    assert session.ask("select from generate_series(1, 2)", (), soon()) == [[], []]
    assert session.ask("do $$ begin raise notice 'not for cron to mail'; end $$", (), soon()) == []
    with pytest.raises(postgresql_session.Refused, match="division by zero") as caught:
        session.ask("select 1 / $1::int", (0,), soon())
    assert caught.value.code == "22012"
    assert session.ask("select length($1)", ("x" * 5_000_000,), soon()) == [["5000000"]]  # more than a socket's buffer
    assert capfd.readouterr().err == ""


# -- getting in


@pytest.fixture
def refusing() -> Iterator[Callable[[str, str], str]]:
    """refusing(code, text) -> URL of a server that says this to whoever wants to log in."""
    listeners: list[Listener] = []

    def serve(code: str, text: str) -> str:
        fields = b"".join(f"{kind}{value}\0".encode() for kind, value in zip("SCM", ("SCHWERWIEGEND", code, text), strict=True)) + b"\0"

        def refuse(client: socket.socket) -> None:
            with client:
                client.recv(65536)
                client.sendall(b"E" + (len(fields) + 4).to_bytes(4, "big") + fields)

        listeners.append(Listener(refuse))
        return f"postgresql://u:secret@127.0.0.1:{listeners[-1].port}/db?sslmode=disable&gssencmode=disable"

    yield serve
    for listener in listeners:
        listener.close()


def test_a_refusal_is_understood_in_any_language(refusing: Callable[[str, str], str]) -> None:
    """By its SQLSTATE, which libpq puts into the text when it is asked to be verbose; psycopg can't ask it."""
    assert postgresql_session.PGconn is libpq.PGconn
    with pytest.raises(PermissionDenied, match=r"SCHWERWIEGEND:  Passwort-Authentifizierung fehlgeschlagen$"):
        connect(refusing("28P01", "Passwort-Authentifizierung fehlgeschlagen")).try_acquire(grant("j"), soon())
    with pytest.raises(ConfigError, match="Datenbank »db« existiert nicht"):
        connect(refusing("3D000", "Datenbank »db« existiert nicht")).try_acquire(grant("j"), soon())
    for code, text in (("53300", "tut mir leid, schon zu viele Verbindungen"), ("57P03", "das Datenbanksystem startet")):
        started = clock.now()
        with pytest.raises(BackendError, match=text):
            connect(refusing(code, text)).try_acquire(grant("j"), started + 0.5)
        assert 0.4 < clock.now() - started < 1  # tried again until the end


def test_a_server_that_is_too_old_is_refused_in_words(opened: Callable[[str], PostgreSQL]) -> None:
    def welcome(client: socket.socket) -> None:
        with client:
            client.recv(65536)
            parts = (b"R", bytes(4)), (b"S", b"server_version\x0011.22\0"), (b"K", bytes(8)), (b"Z", b"I")
            client.sendall(b"".join(kind + (len(part) + 4).to_bytes(4, "big") + part for kind, part in parts))
            client.recv(65536)

    listener = Listener(welcome)
    with pytest.raises(ConfigError, match="PostgreSQL 11 is too old: cronlock needs 12"):
        opened(f"postgresql://u@127.0.0.1:{listener.port}/db?sslmode=disable&gssencmode=disable").try_acquire(grant("j"), soon())
    listener.close()


def test_a_full_server_is_tried_again_until_the_deadline(
    postgresql_server: Postgres, postgresql_database: str, role: str, opened: Callable[[str], PostgreSQL]
) -> None:
    url = postgresql_server.url(postgresql_database, role, "p")
    with postgresql_server.admin() as top:
        top.execute(f"alter role {role} connection limit 1")
    taken = psycopg.connect(url)
    started = clock.now()
    with pytest.raises(BackendError, match="too many connections"):
        opened(url).try_acquire(grant("j"), started + 0.8)
    assert 0.6 < clock.now() - started < 1.3
    threading.Timer(0.5, taken.close).start()
    held(opened(url), "j")


@pytest.fixture(scope="module")
def guarded() -> Iterator[Postgres]:
    """A server that wants passwords."""
    server = Postgres(authentication="scram-sha-256")
    yield server
    server.destroy()


def test_a_wrong_or_missing_password_is_a_refusal(
    guarded: Postgres, monkeypatch: pytest.MonkeyPatch, opened: Callable[[str], PostgreSQL]
) -> None:
    monkeypatch.setenv("PGPASSFILE", "/dev/null")
    bare = f"postgresql://postgres@127.0.0.1:{guarded.port}/postgres"
    for url in (guarded.url(password="se%cret"), bare, guarded.url(user="nobody", password="secret")):
        backend, started = opened(url), clock.now()
        with pytest.raises(PermissionDenied) as caught:
            backend.try_acquire(grant("j"), soon())
        assert clock.now() - started < 3
        text = f"{caught.value} {backend.where}"
        assert "se" + "%cret" not in text and "se%25cret" not in text and "\n" not in text
        assert ":" + "secret" not in text
    with pytest.raises(ConfigError, match="does not exist"):
        opened(guarded.url("nosuch")).try_acquire(grant("j"), soon())


def test_a_name_that_the_database_has_no_letters_for(own_postgresql: Postgres, opened: Callable[[str], PostgreSQL]) -> None:
    with own_postgresql.admin() as admin:
        admin.execute("create database latin encoding 'latin1' lc_collate 'C' lc_ctype 'C' template template0")
    backend = opened(own_postgresql.url("latin"))
    held(backend, "sch\u00f6n")
    with pytest.raises(ConfigError, match="as in UTF8 they are"):
        backend.try_acquire(grant("\u65e5"), soon())


def test_where_a_password_may_come_from(
    guarded: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: Callable[[str], PostgreSQL]
) -> None:
    job = uuid.uuid4().hex  # the server is used twice
    bare = f"postgresql://postgres@127.0.0.1:{guarded.port}/postgres"
    held(opened(guarded.url()), f"url {job}")
    secret = tmp_path / "secret"
    secret.write_text("top\nnot this\n")
    secret.chmod(0o600)
    held(opened(f"{bare}?password_file={secret}"), f"password_file {job}")
    secret.chmod(0o644)
    with pytest.raises(PermissionDenied, match="may read the password"):
        opened(f"{bare}?password_file={secret}").try_acquire(grant("j"), soon())
    with pytest.raises(ConfigError, match="No such file"):
        opened(f"{bare}?password_file={secret}x").try_acquire(grant("j"), soon())
    with pytest.raises(ConfigError, match="Is a directory"):
        opened(f"{bare}?password_file=/tmp").try_acquire(grant("j"), soon())
    passfile = tmp_path / "pgpass"
    passfile.write_text(f"127.0.0.1:{guarded.port}:*:postgres:top\n")
    passfile.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(passfile))
    held(opened(bare), f"pgpass {job}")
    services = tmp_path / "services"
    services.write_text(f"[jobs]\nhost=127.0.0.1\nport={guarded.port}\nuser=postgres\ndbname=postgres\n")
    monkeypatch.setenv("PGSERVICEFILE", str(services))
    backend = opened("postgresql:?service=jobs")
    held(backend, f"service {job}")
    assert backend.where == "postgresql://?service=jobs"
    with pytest.raises(ConfigError, match="nosuch"):
        opened("postgresql://?service=nosuch").try_acquire(grant("j"), soon())
    for name, value in (("PGHOST", "127.0.0.1"), ("PGPORT", str(guarded.port)), ("PGUSER", "postgres"), ("PGPASSWORD", "top")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PGPASSFILE")
    backend = opened("postgresql:")
    held(backend, f"environment {job}")
    assert backend.where == f"postgresql://127.0.0.1:{guarded.port}"


def test_a_socket_directory_is_a_host(guarded: Postgres, opened: Callable[[str], PostgreSQL]) -> None:
    for url in (
        f"postgresql://postgres:top@{str(guarded.home).replace('/', '%2F')}:{guarded.port}/postgres",
        f"postgresql://postgres:top@:{guarded.port}/postgres?host={guarded.home}",
    ):
        backend = opened(url)
        lease = held(backend, "j")
        lease.renew(soon())
        lease.release(finished(lease), soon())
        assert "top" not in backend.where


def test_the_one_that_answers_is_taken(postgresql_server: Postgres, postgresql_database: str, opened: Callable[[str], PostgreSQL]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and never says a word
        hosts = f"127.0.0.1:{free_port()},127.0.0.1:{silent.getsockname()[1]},localhost:{postgresql_server.port}"
        backend = opened(f"postgresql://postgres:top@{hosts}/{postgresql_database}")
        started = clock.now()
        lease = backend.try_acquire(grant("j"), started + 2)
        assert not isinstance(lease, (Busy, Done))
        assert clock.now() - started < 2
        assert hosts in backend.where


def test_a_name_that_nobody_knows(opened: Callable[[str], PostgreSQL], monkeypatch: pytest.MonkeyPatch) -> None:
    def never(host: object, port: object, family: int, kind: int, proto: int, flags: int) -> list[Any]:
        if flags & socket.AI_NUMERICHOST:
            raise socket.gaierror
        time.sleep(2)
        return []

    with pytest.raises(BackendError, match=r"no-such-host\.invalid"):
        opened("postgresql://no-such-host.invalid/db").try_acquire(grant("j"), soon())
    monkeypatch.setattr("_socket.getaddrinfo", never)
    started = clock.now()
    with pytest.raises(BackendError, match="looking up somewhere"):
        opened("postgresql://somewhere/db").try_acquire(grant("j"), started + 0.5)
    assert clock.now() - started < 1


def test_a_read_only_server_is_refused(
    postgresql_url: str, postgresql_database: str, admin: psycopg.Connection[Any], opened: Callable[[str], PostgreSQL]
) -> None:
    held(opened(postgresql_url), "other")
    admin.execute(f"alter database {postgresql_database} set default_transaction_read_only = on")
    with pytest.raises(BackendError, match="default_transaction_read_only is on"):
        opened(postgresql_url).try_acquire(grant("j"), soon())


def test_a_standby_is_refused_and_the_primary_beside_it_taken(
    own_postgresql: Postgres, standby: int, opened: Callable[[str], PostgreSQL]
) -> None:
    with pytest.raises(BackendError, match="standby"):
        opened(f"postgresql://postgres@127.0.0.1:{standby}/postgres").try_acquire(grant("j"), soon())
    both = f"postgresql://postgres@127.0.0.1:{standby},127.0.0.1:{own_postgresql.port}/postgres"
    held(opened(both), "j")
    assert isinstance(opened(own_postgresql.url()).try_acquire(grant("j"), soon()), Busy)


def test_behind_a_pooler_the_row_alone_is_the_lease(
    pooler: str, postgresql_url: str, admin: psycopg.Connection[Any], opened: Callable[[str], PostgreSQL]
) -> None:
    backend, other, straight = opened(pooler), opened(pooler), opened(postgresql_url)
    lease = held(backend, "j")
    assert list(lease.fds) == []
    for contender in (other, straight):
        assert isinstance(contender.try_acquire(grant("j"), soon()), Busy)
    lease.renew(soon())
    straight.close()
    assert admin.execute(ADVISORY, [admin.info.dbname]).fetchone() == (0,)
    with psycopg.connect(pooler, autocommit=True, prepare_threshold=None) as neighbour:  # nothing of ours stuck to the pooled session
        assert neighbour.execute("select current_setting('lock_timeout'), current_setting('idle_session_timeout')").fetchone() == ("0", "0")
    started = clock.now()
    other.wait("j", clock.now() + 0.5)
    assert clock.now() - started < 1
    lease.release(finished(lease), soon())
    held(other, "j")
    with pytest.raises(ConfigError, match="pooler"):
        opened(pooler + "?lock_mode=session").try_acquire(grant("k"), soon())
    with pytest.raises(ConfigError, match="pooler"):
        opened(pooler + "?lock_key=5").try_acquire(grant("k"), soon())
    held(other, "k")
    assert admin.execute(ADVISORY, [admin.info.dbname]).fetchone() == (0,)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql:",
        "postgres://",
        "postgresql://h/db?nosuch=1",
        "postgresql://h/db?lock_mode=fast",
        "postgresql://h/db?lock_key=x",
        "postgresql://h/db?lock_key=99999999999999999999",
        "postgresql://h/db?lock_key=1&lock_mode=lease",
        "postgresql://h/db?table=a.b.c",
        "postgresql://h/db?table=a;drop",
        "postgresql://h/db?table=" + 59 * "a",
        "postgresql://h/db?connect_timeout=soon",
        "postgresql://h/db?connect_timeout=-1",
        "postgresql://u:s3cr3t@[::1/db",
        "postgresql://u:s3cr3t%zz@h/db",
        "postgresql://u:s3cr3t and more@h/db",
        "postgresql://u@h/db?password=a&s3cr3t",
        "postgresql://u@h/db?password=a&s3cr3t=",
    ],
)
def test_urls_that_make_no_sense(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGHOST", "PGHOSTADDR", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError) as caught:
        connect(url)
    assert "s3cr3t" not in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("query", ["sslmode=no", "target_session_attrs=any1", "keepalives_idle=x", "port=0"])
def test_what_libpq_cannot_read_is_no_silence(opened: Callable[[str], PostgreSQL], query: str) -> None:
    with pytest.raises(ConfigError, match="invalid"):
        opened(f"postgresql://127.0.0.1/db?{query}").try_acquire(grant("j"), soon())


def test_where_shows_no_secret() -> None:
    backend = connect("postgresql://u:p%40ss@h1:5433,[::1]:5434/db?sslmode=require&password_file=/x&connect_timeout=3")
    assert backend.where == "postgresql://h1:5433,[::1]:5434/db"
    assert backend.timeout == 3.0
    assert issubclass(ConfigError, CronlockError)
