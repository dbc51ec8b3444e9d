"""How long a lock is asked for, and what becomes of attempts that nobody answered: against a store that answers as told."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from cronlock import clock
from cronlock import run as run_module
from cronlock.errors import BackendError, Interrupted
from cronlock.model import Busy, Event, Grant, Job
from cronlock.signals import Signals

Ask = Callable[..., tuple[object, float, list[Event]]]


class Store:
    """Answers one after another, the last one again and again; `asked`, `waits` and `abandoned` are until when."""

    where = "told:"

    def __init__(self, *answers: object, timeout: float = 1.0) -> None:
        self.answers, self.timeout = list(answers), timeout
        self.asked: list[tuple[float, float]] = []
        self.starts: list[float] = []
        self.waits: list[float] = []
        self.abandoned: list[tuple[str, float]] = []

    def try_acquire(self, grant: Grant, until: float) -> object:
        self.asked.append((clock.now(), until))
        self.starts.append(grant.run.start)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def abandon(self, grant: Grant, until: float) -> None:
        self.abandoned.append((grant.run.token, until))

    def wait(self, name: str, until: float) -> None:
        self.waits.append(until)
        time.sleep(min(0.1, clock.left(until)))


@pytest.fixture
def acquire(monkeypatch: pytest.MonkeyPatch) -> Ask:
    """acquire(store, **job): the answer, the instant that validity counts from, and what was said."""
    monkeypatch.setattr(run_module, "crowded", lambda: False)

    def ask(store: Store, **options: object) -> tuple[object, float, list[Event]]:
        said: list[Event] = []
        job = Job("job", ("true",), **options)  # type: ignore[arg-type]
        grant = Grant("job", run_module.new_run(job), 60.0)
        answer, asked = run_module.acquire(job, grant, store, Signals(), said.append)  # type: ignore[arg-type]
        return answer, asked, said

    return ask


def test_without_wait_it_asks_once(acquire: Ask) -> None:
    store = Store(Busy())
    began = clock.now()
    assert acquire(store)[0] == Busy()
    assert (len(store.asked), store.waits, store.abandoned) == (1, [], [])
    assert began < store.asked[0][1] <= began + 1.0  # some of the time-out is kept for taking back what came of no answer


def test_it_waits_until_its_time_is_over_and_no_longer(acquire: Ask) -> None:
    store = Store(Busy())
    began = clock.now()
    assert acquire(store, wait=0.5)[0] == Busy()
    assert 0.5 <= clock.now() - began < 3
    assert all(abs(until - began - 0.5) < 0.1 for until in store.waits)
    assert store.asked[-1][0] >= store.waits[0]  # it asked once more at the end
    assert store.starts == sorted(set(store.starts))  # what it waits is no part of the run


def test_waiting_ends_with_the_period(acquire: Ask) -> None:
    store = Store(Busy())
    began = clock.now()
    assert acquire(store, wait=float("inf"), period_end=clock.wall() + 0.4)[0] == Busy()
    assert 0.3 <= clock.now() - began < 3
    assert acquire(Store(Busy()), wait=float("inf"), period_end=clock.wall() - 5.0)[0] == Busy()


def test_a_holder_around_us_is_never_waited_for(acquire: Ask) -> None:
    holder = run_module.new_run(Job("job", ("true",)))
    store = Store(Busy(holder))
    answer, _, said = acquire(store, wait=float("inf"), environ={"CRONLOCK_RUN_HELD": f"other {holder.token}"})
    assert (answer, len(store.asked), store.waits) == (Busy(holder), 1, [])
    assert [event.level for event in said] == ["trouble"]
    assert f"pid {os.getpid()}" in said[0].text


def test_a_store_that_never_answered_is_not_asked_again(acquire: Ask) -> None:
    store = Store(BackendError("away"))
    with pytest.raises(BackendError):
        acquire(store, wait=60.0)
    assert len(store.asked) == len(store.abandoned) == 1
    assert abs(store.abandoned[0][1] - store.asked[0][0] - store.timeout) < 0.1


def test_one_that_answered_before_may_be_away_for_its_time_out(acquire: Ask) -> None:
    store = Store(Busy(), BackendError("away"))
    began = clock.now()
    with pytest.raises(BackendError):
        acquire(store, wait=60.0)
    assert 1.0 <= clock.now() - began < 5
    assert len(store.abandoned) == len(store.asked) - 1 > 1  # each may have got the lock all the same
    assert len({token for token, _ in store.abandoned}) == 1


def test_but_not_for_longer_than_is_waited(acquire: Ask) -> None:
    store = Store(Busy(), BackendError("away"), timeout=60.0)
    began = clock.now()
    with pytest.raises(BackendError):
        acquire(store, wait=0.5)
    assert 0.5 <= clock.now() - began < 5


def test_one_that_comes_back_is_asked_on(acquire: Ask) -> None:
    store = Store(Busy(), BackendError("away"), Busy(), "a lease")
    answer, asked, _ = acquire(store, wait=60.0)
    assert answer == "a lease"
    assert store.asked[1][0] - 0.1 < asked <= store.asked[1][0]  # the one without an answer may have been granted then


def test_on_a_crowded_host_it_goes_on_asking(acquire: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "crowded", lambda: True)
    store = Store(BackendError("away"), timeout=0.2)
    began = clock.now()
    with pytest.raises(BackendError):
        acquire(store)
    assert run_module.CROWDED * 0.2 <= clock.now() - began < 5
    assert acquire(Store(BackendError("away"), BackendError("away"), "a lease"))[0] == "a lease"


def test_an_attempt_that_a_signal_ends_is_taken_back(acquire: Ask) -> None:
    store = Store(Busy(), Interrupted(15))
    began = clock.now()
    with pytest.raises(Interrupted):
        acquire(store, wait=60.0)
    assert len(store.abandoned) == 1
    assert began + 4 < store.abandoned[0][1] < clock.now() + run_module.RELEASE


class Late:
    """A grant that is due for renewal; `until` is for how long that may be tried."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error

    def fit_to_start(self, until: float) -> bool:
        self.until = until
        if self.error:
            raise self.error
        return True


def fresh(keeping: Late, store: Store, asked: float) -> None:
    grant = Grant("job", run_module.new_run(Job("job", ("true",))), 60.0)
    run_module.fresh(keeping, asked, grant, store, Signals())  # type: ignore[arg-type]


def test_a_grant_later_than_its_time_out_has_time_for_a_renewal() -> None:
    late = Late()
    fresh(late, Store(), clock.now() - 60.0)
    assert late.until > clock.now()


def test_a_signal_while_a_late_grant_is_renewed_gives_it_back() -> None:
    store = Store()
    with pytest.raises(Interrupted):
        fresh(Late(Interrupted(15)), store, clock.now())
    assert len(store.abandoned) == 1
