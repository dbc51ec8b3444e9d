"""When a lease is renewed and regained, and when the command has to go: by the clock, without a store."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cronlock import clock
from cronlock.errors import BackendError, LeaseLost
from cronlock.lease import PATIENCE, PAUSE, Keeping

INF = float("inf")


class Lease:
    """`renew` and `regain` answer what they are told to; `asked` is what was asked, and until when."""

    def __init__(self, valid_for: float) -> None:
        self.valid_for = valid_for
        self.answers: dict[str, Exception] = {}
        self.asked: list[tuple[str, float]] = []

    def _answer(self, word: str, until: float) -> None:
        self.asked.append((word, until))
        if word in self.answers:
            raise self.answers[word]

    def renew(self, until: float) -> None:
        self._answer("renew", until)

    def regain(self, until: float) -> None:
        self._answer("regain", until)

    @property
    def words(self) -> list[str]:
        return [word for word, _ in self.asked]


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """now(t): the lease's clock shows t, and stands."""

    def show(at: float) -> None:
        monkeypatch.setattr(clock, "now", lambda: at)

    show(100.0)
    return show


def keeping(lease: Lease, ttl: float = 60.0, kill_after: float = 10.0) -> Keeping:
    return Keeping(lease, 100.0, ttl, kill_after)  # type: ignore[arg-type]


def test_everything_counts_from_before_the_request(now: Callable[[float], None]) -> None:
    kept = keeping(Lease(60.0))
    assert (kept.due(), kept.gap, kept.grace) == (120.0, 20.0, 10.0)
    assert kept.deadline == 159.5  # when the tree is gone; KILL falls before the store gives the lock to another
    now(121.0)
    assert kept.turn()
    assert (kept.due(), kept.deadline) == (141.0, 180.5)


@pytest.mark.parametrize(("ttl", "kill_after", "grace", "margin"), [(8.0, 10.0, 2.0, 0.4), (60.0, 3.0, 3.0, 0.5)])
def test_grace_and_margin_take_a_part_of_a_short_ttl(
    now: Callable[[float], None], ttl: float, kill_after: float, grace: float, margin: float
) -> None:
    kept = keeping(Lease(ttl), ttl, kill_after)
    assert (kept.grace, kept.margin) == (grace, margin)
    assert kept.deadline == 100.0 + ttl - margin


def test_a_servers_shorter_lease_is_what_counts(now: Callable[[float], None]) -> None:
    kept = keeping(Lease(30.0))
    assert (kept.due(), kept.gap, kept.grace, kept.deadline) == (110.0, 10.0, 7.5, 129.5)


def test_a_lock_that_does_not_run_out_is_looked_at_each_second(now: Callable[[float], None]) -> None:
    kept = keeping(Lease(INF), 60.0, 70.0)
    assert (kept.due(), kept.gap, kept.grace, kept.deadline) == (101.0, INF, 70.0, INF)
    assert not kept.expired()


def test_it_is_too_late_when_what_is_left_is_needed_to_stop_the_tree(now: Callable[[float], None]) -> None:
    kept = keeping(Lease(60.0))
    now(149.4)
    assert not kept.expired()
    now(149.5)
    assert kept.expired()


def test_without_an_answer_it_tries_again_soon_then_less_often(now: Callable[[float], None]) -> None:
    lease = Lease(60.0)
    kept = keeping(lease)
    lease.answers["renew"] = BackendError("away")
    pauses, patience = [], []
    now(120.0)
    for _ in range(6):
        assert not kept.turn()
        pauses.append(round(kept.due() - 120.0, 3))
        patience.append(round(lease.asked[-1][1] - 120.0, 3))
    assert pauses == [PAUSE[0], 2 * PAUSE[0], 4 * PAUSE[0], PAUSE[1], PAUSE[1], PAUSE[1]]
    assert patience == [PATIENCE[0], 2.0, 4.0, 8.0, PATIENCE[1], PATIENCE[1]]
    assert kept.unanswered == "away"
    assert kept.deadline == 159.5  # as if it had not been asked for
    del lease.answers["renew"]
    assert kept.turn()
    assert (kept.unanswered, kept.due(), kept.regained) == ("", 140.0, False)
    lease.answers["renew"] = BackendError("away again")
    assert not kept.turn()
    assert (round(kept.due() - 120.0, 3), round(lease.asked[-1][1] - 120.0, 3)) == (PAUSE[0], PATIENCE[0])


def test_no_try_outlasts_the_instant_when_the_tree_must_be_stopped(now: Callable[[float], None]) -> None:
    lease = Lease(60.0)
    kept = keeping(lease)
    now(148.7)
    kept.turn()
    kept.turn(until=777.0)
    assert [until for _, until in lease.asked] == [149.5, 777.0]


def test_even_the_last_try_has_time_for_an_answer(now: Callable[[float], None]) -> None:
    lease = Lease(60.0)
    kept = keeping(lease)
    now(149.4)
    kept.turn()
    assert lease.asked[0][1] == 149.4 + PATIENCE[0] / 2


def test_what_is_gone_is_regained_and_not_renewed(now: Callable[[float], None]) -> None:
    lease = Lease(60.0)
    kept = keeping(lease)
    lease.answers = {"renew": LeaseLost("gone"), "regain": BackendError("away")}
    now(120.0)
    assert not kept.turn()
    assert not kept.turn()  # known to be gone: a renewal would only say so again
    assert lease.words == ["renew", "regain", "regain"]
    del lease.answers["regain"]
    assert kept.turn()
    assert kept.regained
    assert kept.deadline == 179.5
    lease.answers = {}
    assert kept.turn()
    assert not kept.regained  # said once
    assert lease.words[-2:] == ["regain", "renew"]


def test_what_cannot_be_regained_is_lost_and_not_asked_for_again(now: Callable[[float], None]) -> None:
    lease = Lease(60.0)
    kept = keeping(lease)
    lease.answers = {"renew": LeaseLost("gone"), "regain": LeaseLost("another has it")}
    with pytest.raises(LeaseLost, match="another has it"):
        kept.turn()
    assert kept.due() == INF


def test_a_fresh_grant_starts_as_it_is(now: Callable[[float], None]) -> None:
    lease = Lease(60.0)
    kept = keeping(lease)
    now(119.0)
    assert kept.fit_to_start(777.0)
    assert lease.asked == []


def test_a_grant_that_is_due_is_renewed_before_the_start(now: Callable[[float], None]) -> None:
    lease = Lease(60.0)
    kept = keeping(lease)
    now(120.0)
    assert kept.fit_to_start(777.0)
    assert lease.asked == [("renew", 777.0)]
    assert kept.deadline == 179.5


@pytest.mark.parametrize(("answer", "said"), [(BackendError("away"), "away"), (LeaseLost("another has it"), "another has it")])
def test_a_grant_that_is_due_and_not_renewed_does_not_start(now: Callable[[float], None], answer: Exception, said: str) -> None:
    lease = Lease(60.0)
    kept = keeping(lease)
    now(130.0)
    lease.answers = {"renew": answer, "regain": answer}
    assert not kept.fit_to_start(777.0)
    assert kept.unanswered == said


def test_a_renewal_that_took_as_long_as_its_lease_starts_nothing(now: Callable[[float], None]) -> None:
    lease = Lease(60.0)
    kept = keeping(lease)
    now(130.0)
    lease.renew = lambda until: now(185.0)  # type: ignore[method-assign]
    assert not kept.fit_to_start(777.0)
