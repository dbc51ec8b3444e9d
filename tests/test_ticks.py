"""Never two starts of one label: simulated hosts with wrong clocks, early and late timers, and crashes, on the real rule."""

from __future__ import annotations

from collections import Counter

from hypothesis import example, given, settings
from hypothesis import strategies as st

from cronlock import state
from cronlock.model import Grant, Run
from cronlock.periods import period_of

BASE = 1_764_000_000 // 3600 * 3600
PERIOD = 300

hosts = st.lists(st.integers(-99 * PERIOD, 99 * PERIOD), min_size=2, max_size=5)  # how far each host's clock is ahead
ends = st.sampled_from(["ok", "failed", "crash"])


class Store:
    """One lock, asked by one host at a time, as every backend guarantees; a job is instant or dies."""

    def __init__(self) -> None:
        self.state = state.State()
        self.starts: Counter[str] = Counter()
        self.ok: Counter[str] = Counter()
        self.tokens = 0

    def start(self, label: str, now: float, end: str, retry: bool) -> None:
        self.tokens += 1
        run = Run("id", str(self.tokens), "h", 1, "u", "c", now, label)
        answer = state.claim(self.state, Grant("n", run, 60, retry_failed=retry), now)
        if not isinstance(answer, state.State):
            return
        self.starts[label] += 1
        self.state = answer
        if end != "crash":
            assert answer.run
            self.state = state.ended(answer, answer.run.but(outcome=end, status=0, end=now))
            self.ok[label] += end == "ok"


def ticks(skews: list[int], jitters: list[float], steps: list[float], count: int) -> list[tuple[float, str]]:
    """(true time, label) of every start: each host fires at its own clock's ticks, late by a `jitter`, or early; just after
    some of them its clock steps back, and its cron fires that tick again."""
    fired = []
    for host, skew in enumerate(skews):
        for n in range(count):
            late = jitters[(host * count + n) % len(jitters)]
            local = BASE + n * PERIOD + late
            fired.append((local - skew, period_of(local, PERIOD).label))
            back = steps[(host * count + n) % len(steps)]
            if back:
                again = max(local - back, BASE + n * PERIOD - 1.99)
                fired.append((local - skew + 0.1, period_of(again, PERIOD).label))
    return sorted(fired)


scenario = {
    "skews": hosts,
    "jitters": st.lists(st.floats(-1.99, 200), min_size=1, max_size=8),
    "steps": st.lists(st.sampled_from([0.0, 0.0, 0.5, 2.0]), min_size=1, max_size=5),
    "fates": st.lists(ends, min_size=1, max_size=9),
}


@settings(max_examples=300, deadline=None)
@given(**scenario)
def test_a_label_starts_at_most_once(skews: list[int], jitters: list[float], steps: list[float], fates: list[str]) -> None:
    store = Store()
    for n, (now, label) in enumerate(ticks(skews, jitters, steps, 20)):
        store.start(label, now, fates[n % len(fates)], retry=False)
    assert max(store.starts.values()) == 1
    assert len(store.starts) == 20  # and no tick is skipped, whoever has it


# tries that failed took the places of labels which the host that is 85 minutes behind had yet to reach: two of them ran again
@example(skews=[0, 0, 0, 301, -5100], jitters=[0.0], steps=[0.5], fates=["ok", "ok", *["failed"] * 5, "ok"])
@settings(max_examples=300, deadline=None)
@given(**scenario)
def test_with_retry_failed_a_period_succeeds_once_if_anybody_can(
    skews: list[int], jitters: list[float], steps: list[float], fates: list[str]
) -> None:
    store = Store()
    last: dict[str, int] = {}
    fired = ticks(skews, jitters, steps, 20)
    for n, (_, label) in enumerate(fired):
        last[label] = n
    for n, (now, label) in enumerate(fired):
        # whoever comes last for a label can do it
        store.start(label, now, "ok" if last[label] == n else fates[n % len(fates)], retry=True)
    assert set(store.ok.values()) == {1}
    assert len(store.ok) == 20
