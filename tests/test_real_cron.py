"""The promise, on three hosts with real cron, whose clocks are 29 seconds apart."""

import os
from collections import Counter

import pytest

import overlap
from hosts import Lab, cronlock, missing

pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.fixture
def lab(tmp_path):
    if reason := missing():
        (pytest.fail if os.environ.get("CI") == "true" and os.geteuid() == 0 else pytest.skip)(reason)
    with Lab(tmp_path) as lab:
        lab.add("h1")
        lab.add("h2", skew=4)
        lab.add("h3", skew=-25)
        yield lab


def common_ticks(lab):
    """Ticks that fired on every host."""
    hosts = Counter(tick for tick, _ in {(attempt.tick, attempt.host) for attempt in lab.attempts()})
    return [tick for tick in hosts if hosts[tick] == len(lab.hosts)]


@pytest.mark.parametrize("store", ["redis", "postgresql"])
def test_at_most_one_host_runs_it(lab, store):
    url = getattr(lab, store)()
    lab.start(f"* * * * * {cronlock()} -b {url} tick -- {lab.job(1, 2.4)}")  # ends before, between and after the others' attempts
    lab.after(ticks=10)
    lab.drain()

    assert lab.output() == ""  # N-1 hosts must not mail every tick
    runs, ticks = lab.runs(), common_ticks(lab)
    assert overlap.overlaps(runs) == []
    assert overlap.unfinished(runs) == []
    assert overlap.backward_fences(runs) == []
    assert all(run.fence != "-" for run in runs)
    assert len(ticks) >= 9
    assert len(overlap.missed(runs, ticks)) <= 1
    assert Counter(attempt.status for attempt in lab.attempts()) == {0: len(runs), 75: len(lab.attempts()) - len(runs)}


def test_without_the_lock_they_overlap(lab):
    lab.start(f"* * * * * {lab.job(1.6)}")  # 32 s by cron's clocks
    lab.after(ticks=3)
    lab.drain()

    runs, ticks = lab.runs(), common_ticks(lab)
    assert len(overlap.overlaps(runs)) >= len(ticks) >= 2
    for tick in ticks:  # the clocks do differ: 29 s, or 1.45 of ours
        start = {run.host: run.start / 1e9 for run in runs if run.tick == tick}
        assert 0.7 < start["h3"] - start["h2"] < 3
    assert lab.output() == ""


@pytest.mark.parametrize("store", ["redis", "postgresql", "flock"])
def test_once_per_tick_although_the_job_is_instant(lab, store, tmp_path):
    """The clocks are 29 s apart, a host is dead for half of it, and still each tick has exactly one run."""
    url = f"flock://{tmp_path}/locks" if store == "flock" else getattr(lab, store)()
    lab.start(f"* * * * * {cronlock()} -b {url} --once-per 1m bill -- {lab.job(0)}")
    lab.after(ticks=10)
    lab.hosts["h2"].kill()
    lab.after(ticks=10)
    lab.drain()

    runs = lab.runs()
    ticks = sorted({attempt.tick for attempt in lab.attempts() if attempt.host == "h1"})
    assert lab.output() == ""
    assert overlap.doubles(runs) == {}
    assert overlap.missed(runs, ticks[1:-1]) == []  # of the first and the last, h1 may have seen a part only
    assert len(ticks) >= 20


def test_without_a_period_an_instant_job_runs_on_every_host(lab):
    lab.start(f"* * * * * {cronlock()} -b {lab.redis()} bill -- {lab.job(0)}")
    lab.after(ticks=3)
    lab.drain()
    assert len(overlap.doubles(lab.runs())) >= 2
