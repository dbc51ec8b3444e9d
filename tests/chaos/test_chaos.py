"""A short one for every day: about twenty seconds of faults for each store, one after the other. The long one is `python -m chaos`."""

from __future__ import annotations

import random

import pytest

from chaos import judge
from chaos.__main__ import wrong
from chaos.driver import Chaos


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["flock", "postgresql", "redis"])
def test_never_two_whatever_breaks(backend: str) -> None:
    seed = random.SystemRandom().randrange(10**6)
    result = Chaos(backend, seed=seed).run(faults=1000, seconds=9)
    said = f"seed {seed}, {len(result.faults)} faults, {len(result.runs)} runs, {result.directory}"
    assert wrong(result) == [], said
    assert result.faults and len(result.runs) >= 2, said  # how many of them depends on how busy the machine is


def line(word: str, at: int, run: str, fence: int = 1) -> str:
    return f"{word} {at} {run} s0 plain {fence}\n"


def judged(*lines: str, faults: tuple[judge.Fault, ...] = ()) -> list[tuple[str, str, str]]:
    return [(o.one.run.id, o.other.run.id, o.window) for o in judge.overlaps(judge.read(lines), faults, grace=0.5)]


def test_the_judge_sees_one_act_too_many() -> None:
    assert judged(line("start", 1, "a"), line("beat", 2, "a"), line("start", 3, "b"), line("beat", 4, "a")) == [("a", "b", "")]


def test_a_frozen_run_that_never_acts_again_overlaps_with_nobody() -> None:
    assert judged(line("start", 1, "a"), line("beat", 2, "a"), line("start", 3, "b"), line("end", 4, "b")) == []


def test_a_late_line_counts_whatever_its_clock_says() -> None:
    """Frozen between the look at the clock and the write."""
    assert judged(line("start", 1, "a"), line("start", 3, "b"), line("beat", 2, "a")) == [("a", "b", "")]


def test_a_named_window_is_told_apart_only_while_it_lasts() -> None:
    second = 10**9
    emptied = judge.Fault("emptied", "", 2 * second, 2 * second)
    short = [line("start", second, "a"), line("start", 3 * second, "b"), line("beat", 3 * second + 1, "a")]
    long = [line("start", second, "a"), line("start", 3 * second, "b"), line("beat", 6 * second, "a"), line("end", 7 * second, "b")]
    assert judged(*short, faults=(emptied,)) == [("a", "b", "emptied")]
    assert judged(*long, faults=(emptied,)) == [("a", "b", "")]
    assert judged(*short) == [("a", "b", "")]


def test_recovery_counts_from_when_nothing_stood_in_the_way() -> None:
    second = 10**9
    runs = judge.read([line("start", 0, "a"), line("start", 9 * second, "b")])
    down = judge.Fault("crash", "", 2 * second, 7 * second)
    assert judge.gaps(runs, [down], (), 10 * second) == [judge.Gap(0, 9.0, 2.0, 2.0)]


def test_recovery_counts_from_the_last_fault_that_hit_the_holder() -> None:
    second = 10**9
    runs = judge.read([line("start", 0, "a"), line("start", 9 * second, "b")])
    killed = judge.Fault("kill-cronlock", "s4", 3 * second, 3 * second)
    waiter = judge.Fault("freeze-cronlock", "s2", 5 * second, 8 * second)
    cut = judge.Fault("cut", "h1", 4 * second, 8 * second)
    holds = [judge.Hold("s4", "g", 2 * second, 6 * second)]

    def recovery(*faults: judge.Fault) -> float:
        return judge.gaps(runs, faults, (), 10 * second, holds, networks=3)[0].recovery

    assert recovery(killed) == 6.0
    assert recovery(killed, cut) == 5.0  # host h1 has the slots s1 and s4
    assert recovery(waiter) == 9.0
    assert recovery(judge.Fault("cut", "h1", second, 8 * second)) == 9.0  # before the grant, which should not have been
    assert judge.gaps(runs, [killed, cut], (), 10 * second, holds, 3)[0].idle == 0
    assert judge.gaps(runs, [judge.Fault("cut", "h1", second, 8 * second)], (), 10 * second, holds, 3)[0].idle == 1
