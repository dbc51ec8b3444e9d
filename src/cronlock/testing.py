"""The tests every backend passes, public for plugin authors.

    from cronlock.testing import BackendContract

    class TestMine(BackendContract):
        @pytest.fixture
        def url(self) -> str: ...              # an empty store, real and running
        @pytest.fixture
        def dead_url(self) -> str: ...         # the same kind of store, not there

Needs pytest. Nothing is mocked: crashes are SIGKILLs of real processes, times are real times.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cronlock import clock
from cronlock.errors import BackendError, ConfigError, LeaseLost
from cronlock.model import Busy, Done, Grant, Run
from cronlock.protocol import Backend, Lease
from cronlock.registry import open_backend

PATIENCE = 20.0


def grant(name: str, *, ttl: float = 5.0, label: str = "", min_hold: float = 0.0, retry_failed: bool = False) -> Grant:
    """A grant as cli makes one, with a fresh token."""
    run = Run(uuid.uuid4().hex[:8], uuid.uuid4().hex, os.uname().nodename, os.getpid(), "tester", "true", time.time(), label)
    return Grant(name, run, ttl, min_hold, retry_failed)


def finished(lease: Lease, outcome: str = "ok") -> Run:
    return lease.run.but(outcome=outcome, status=0 if outcome == "ok" else 1, end=time.time())


def soon(seconds: float = PATIENCE) -> float:
    return clock.now() + seconds


def poll(what: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """The first true answer of `what`; fails after `seconds`."""
    until = clock.now() + seconds
    while not (answer := what()):
        assert clock.now() < until, f"still not so after {seconds} s"
        time.sleep(0.02)
    return answer


def held(backend: Backend, name: str, **kw: Any) -> Lease:
    answer = backend.try_acquire(grant(name, **kw), soon())
    assert not isinstance(answer, (Busy, Done)), answer
    return answer


HOLDER = """
import sys, time
from cronlock import testing
from cronlock.registry import open_backend
lease = testing.held(open_backend(sys.argv[1]), sys.argv[2], ttl=float(sys.argv[3]))
print(lease.run.fence, flush=True)
time.sleep(600)
"""

COUNTER = """
import os, sys, time
from cronlock import testing
from cronlock.model import Busy
from cronlock.registry import open_backend
url, name, path, times = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
backend = open_backend(url)
while times:
    answer = backend.try_acquire(testing.grant(name, ttl=30), testing.soon())
    if isinstance(answer, Busy):
        backend.wait(name, testing.soon(5))
        continue
    with open(path) as f: n = int(f.read())
    with open(path, "w") as f: f.write(str(n + 1))
    answer.release(testing.finished(answer), testing.soon())
    times -= 1
"""


class BackendContract:
    """Subclass it with the fixtures `url` and `dead_url`."""

    ttl_frees = True  # a SIGKILLed holder's lock runs out by ttl; kernel locks go sooner, which passes as well
    processes, increments = 8, 100

    @pytest.fixture
    def opened(self, url: str) -> Iterator[Callable[[], Backend]]:
        backends: list[Backend] = []

        def another() -> Backend:
            backends.append(open_backend(url))
            return backends[-1]

        yield another
        for backend in backends:
            backend.close()

    @pytest.fixture
    def backend(self, opened: Callable[[], Backend]) -> Backend:
        return opened()

    @pytest.fixture
    def other(self, opened: Callable[[], Backend]) -> Backend:
        """A second client of the same store, as on another host."""
        return opened()

    @pytest.fixture
    def name(self) -> str:
        return f"job-{uuid.uuid4().hex[:10]}"

    def test_busy_is_an_answer_and_names_the_holder(self, backend: Backend, other: Backend, name: str) -> None:
        lease = held(backend, name)
        answer = other.try_acquire(grant(name), soon())
        assert isinstance(answer, Busy) and not answer.held
        assert answer.run is not None
        assert (answer.run.token, answer.run.host, answer.run.pid) == (lease.run.token, os.uname().nodename, os.getpid())
        assert abs(answer.run.start - lease.run.start) < 0.01

    def test_a_store_knows_no_re_entry(self, backend: Backend, name: str) -> None:
        held(backend, name)
        assert isinstance(backend.try_acquire(grant(name), soon()), Busy)

    def test_names_are_independent(self, backend: Backend, other: Backend, name: str) -> None:
        held(backend, name)
        for different in (name + "x", name[:-1], name.upper(), name + " ü %"):
            held(other, different)

    def test_released_is_free_at_once(self, backend: Backend, other: Backend, name: str) -> None:
        for client in (backend, other, backend):
            lease = held(client, name)
            lease.release(finished(lease), soon())

    def test_fence_grows(self, backend: Backend, other: Backend, name: str) -> None:
        fences = []
        for client in (backend, other, backend, other):
            lease = held(client, name)
            fences.append(lease.run.fence)
            lease.release(finished(lease), soon())
        assert fences == sorted(set(fences))
        assert abs(fences[0] / 1e6 - time.time()) < 3600  # microseconds of the store's clock

    def test_renewed_is_held_longer_than_its_ttl(self, backend: Backend, other: Backend, name: str) -> None:
        lease = held(backend, name, ttl=1.5)
        until = clock.now() + 4
        while clock.now() < until:
            lease.renew(soon())
            assert isinstance(other.try_acquire(grant(name, ttl=1.5), soon()), Busy)
            time.sleep(0.3)
        lease.release(finished(lease), soon())

    def test_a_contenders_ttl_shortens_nobodys_lease(self, backend: Backend, other: Backend, name: str) -> None:
        lease = held(backend, name, ttl=20)
        for _ in range(8):
            assert isinstance(other.try_acquire(grant(name, ttl=1), soon()), Busy)
            time.sleep(0.2)
        lease.renew(soon())

    def test_only_the_owner_releases_and_renews(self, backend: Backend, other: Backend, name: str) -> None:
        stale = held(backend, name, ttl=2)
        stale.release(finished(stale), soon())
        lease = held(other, name)
        with pytest.raises(LeaseLost):
            stale.renew(soon())
        with pytest.raises(LeaseLost):
            stale.release(finished(stale), soon())
        lease.renew(soon())
        assert isinstance(backend.try_acquire(grant(name), soon()), Busy)

    def test_another_grant_is_never_regained(self, backend: Backend, other: Backend, name: str) -> None:
        mine = held(backend, name)
        mine.release(finished(mine), soon())
        theirs = held(other, name)
        with pytest.raises(LeaseLost):
            mine.regain(soon())
        theirs.renew(soon())

    def test_a_seized_lease_is_lost_and_never_regained(self, backend: Backend, other: Backend, name: str) -> None:
        lease = held(backend, name, ttl=2, label="1h/a", min_hold=60)
        lost, by = lease.run.but(outcome="lost", status=76, end=time.time()), grant(name).run.but(outcome="released", end=time.time())
        with pytest.raises(LeaseLost):
            other.seize(name, lost.but(token="0" * 32), by, soon())
        lease.renew(soon())
        other.seize(name, lost, by, soon())
        assert isinstance(other.try_acquire(grant(name), soon()), Busy)  # its command may still run
        for act in (lease.renew, lease.regain, lambda until: lease.release(finished(lease), until)):
            with pytest.raises(LeaseLost):
                act(soon())
        with pytest.raises(LeaseLost):
            other.seize(name, lost, by, soon())
        backend.close()
        poll(lambda: not isinstance(other.try_acquire(grant(name), soon()), Busy), 5)
        with pytest.raises(LeaseLost):
            lease.regain(soon())
        assert [(r.token, r.outcome) for r in other.history(name, soon())] == [(lease.run.token, "lost")]

    def test_a_killed_holder_is_followed_within_its_ttl(self, url: str, other: Backend, name: str) -> None:
        holder = subprocess.Popen([sys.executable, "-c", HOLDER, url, name, "2"], stdout=subprocess.PIPE, text=True)
        try:
            assert holder.stdout and int(holder.stdout.readline()) > 0
            assert isinstance(other.try_acquire(grant(name), soon()), Busy)
            holder.send_signal(signal.SIGKILL)
            holder.wait()
            died = clock.now()
            lease = poll(lambda: None if isinstance(a := other.try_acquire(grant(name), soon()), (Busy, Done)) else a)
            assert clock.now() - died < 2 + 1.5
            assert lease.previous is not None and lease.previous.pid == holder.pid
            assert lease.previous.outcome == "vanished"
            lease.release(finished(lease), soon())
            assert [r.outcome for r in other.history(name, soon())] == ["vanished", "ok"]
        finally:
            holder.kill()
            holder.communicate()

    def test_an_attempt_cut_short_leaves_nothing(self, backend: Backend, other: Backend, name: str) -> None:
        asked = grant(name, ttl=30, label="1h/a", min_hold=30)
        assert not isinstance(backend.try_acquire(asked, soon()), (Busy, Done))
        backend.abandon(asked, soon())
        held(other, name, label="1h/a")  # the label is not used up either
        backend.abandon(grant(name), soon())  # somebody else's stays
        assert isinstance(backend.try_acquire(grant(name), soon()), Busy)

    def test_the_holder_can_be_read_while_it_holds(self, backend: Backend, other: Backend, name: str) -> None:
        assert not other.status(name, soon()).held
        lease = held(backend, name)
        status = other.status(name, soon())
        assert status.held and status.run and status.run.token == lease.run.token and not status.run.outcome
        lease.renew(soon())
        lease.release(finished(lease), soon())
        status = other.status(name, soon())
        assert not status.held and status.run and status.run.outcome == "ok"
        assert name in set(other.names(soon()))

    def test_history_is_kept_oldest_first_and_trimmed(self, backend: Backend, name: str) -> None:
        for i in range(105):
            lease = held(backend, name)
            lease.release(finished(lease).but(status=i), soon())
        assert [r.status for r in backend.history(name, soon())] == list(range(5, 105))

    def test_a_label_is_had_once(self, backend: Backend, other: Backend, name: str) -> None:
        first = held(backend, name, label="1h/a")
        first.release(finished(first, "failed"), soon())
        answer = other.try_acquire(grant(name, label="1h/a"), soon())
        assert isinstance(answer, Done)
        assert (answer.run.token, answer.run.outcome, answer.run.label) == (first.run.token, "failed", "1h/a")
        assert isinstance(other.try_acquire(grant(name, label="1h/a"), soon()), Done)  # a refused claim left no lock behind
        second = held(other, name, label="1h/b")
        second.release(finished(second), soon())
        unlabelled = held(other, name)
        unlabelled.release(finished(unlabelled), soon())
        assert isinstance(backend.try_acquire(grant(name, label="1h/a"), soon()), Done)
        again = held(backend, name, label="1h/a", retry_failed=True)
        again.release(finished(again), soon())
        assert isinstance(backend.try_acquire(grant(name, label="1h/a", retry_failed=True), soon()), Done)

    def test_a_labels_running_holder_is_busy_not_done(self, backend: Backend, other: Backend, name: str) -> None:
        held(backend, name, label="1h/a")
        assert isinstance(other.try_acquire(grant(name, label="1h/a"), soon()), Busy)

    def test_tries_that_failed_push_no_label_out(self, backend: Backend, name: str) -> None:
        """A hundred labels are kept, not a hundred tries: of each the last run counts."""
        first = held(backend, name, label="1h/a")
        first.release(finished(first), soon())
        for _ in range(100):
            lease = held(backend, name, label="1h/b", retry_failed=True)
            lease.release(finished(lease, "failed"), soon())
        assert isinstance(backend.try_acquire(grant(name, label="1h/a"), soon()), Done)

    def test_the_last_hundred_labels_are_kept(self, backend: Backend, name: str) -> None:
        for i in range(103):
            lease = held(backend, name, label=f"1m/{i}")
            lease.release(finished(lease), soon())
        for i in (3, 50, 102):
            assert isinstance(backend.try_acquire(grant(name, label=f"1m/{i}"), soon()), Done)
        assert not isinstance(backend.try_acquire(grant(name, label="1m/2"), soon()), (Busy, Done))

    def test_min_hold_counts_from_the_start(self, backend: Backend, other: Backend, name: str) -> None:
        lease = held(backend, name, min_hold=1.5, ttl=1)
        started = clock.now()
        lease.release(finished(lease), soon())
        answer = other.try_acquire(grant(name), soon())
        assert isinstance(answer, Busy) and answer.held
        poll(lambda: not isinstance(other.try_acquire(grant(name), soon()), Busy), 4)
        assert 1.3 < clock.now() - started < 2.6
        # a run longer than its min-hold is free at once
        lease = held(backend, name + "2", min_hold=0.2)
        time.sleep(0.4)
        lease.release(finished(lease), soon())
        held(other, name + "2")

    def test_wait_ends_with_the_release_or_in_time(self, url: str, backend: Backend, other: Backend, name: str) -> None:
        lease = held(backend, name, ttl=30)
        started = clock.now()
        other.wait(name, clock.now() + 0.7)
        assert clock.now() - started < 1.7
        lease.release(finished(lease), soon())
        started = clock.now()
        free = False
        while not free:
            other.wait(name, soon(1))
            free = not isinstance(other.try_acquire(grant(name), soon()), Busy)
            assert clock.now() - started < PATIENCE
        assert clock.now() - started < 2

    def test_a_store_that_is_not_there_is_unknown_never_busy(self, dead_url: str, name: str) -> None:
        backend, started = open_backend(dead_url), clock.now()
        with pytest.raises((BackendError, ConfigError)) as caught:  # ConfigError: a directory that can't be
            backend.try_acquire(grant(name), clock.now() + 3)
        assert clock.now() - started < 4 and "\n" not in str(caught.value)
        backend.abandon(grant(name), clock.now() + 1)
        backend.close()
        backend.close()

    def test_a_counter_loses_nothing(self, url: str, tmp_path: Path, name: str) -> None:
        counter = tmp_path / "counter"
        counter.write_text("0")
        argv = [sys.executable, "-c", COUNTER, url, name, str(counter), str(self.increments)]
        workers = [subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) for _ in range(self.processes)]
        for worker in workers:
            _, err = worker.communicate(timeout=300)
            assert worker.returncode == 0, err
        assert counter.read_text() == str(self.processes * self.increments)
