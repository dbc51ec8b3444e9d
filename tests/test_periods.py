"""Labels: two clocks agree on a tick; nothing that cron fires is skipped; boundaries tolerate a timer that is early."""

import calendar
import os
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cronlock.periods import DAY, HOUR, check, period_of

SUB_HOUR = [1, 5, 60, 300, 600, 900, 1800, 3600]
ZONES = ["UTC", "Europe/London", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "Pacific/Auckland"]


@pytest.fixture
def zone(request: pytest.FixtureRequest) -> Iterator[str]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = request.param
    time.tzset()
    yield request.param
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


@pytest.mark.parametrize("seconds", [1, 60, 90, 300, 3600, 7200, 6 * HOUR, DAY, 7 * DAY, 2 * DAY])
def test_what_tiles_is_a_period(seconds: int) -> None:
    assert check(float(seconds)) == seconds


@pytest.mark.parametrize("seconds", [0, 0.5, 60.5, 420, 5 * HOUR, 25 * HOUR, 1.5 * DAY, 61])
def test_what_does_not_tile_is_refused_with_the_reason(seconds: float) -> None:
    with pytest.raises(ValueError, match="divide an hour"):
        check(seconds)


@given(st.integers(0, 4_000_000_000), st.sampled_from(SUB_HOUR), st.floats(-0.999, 0.999))
def test_every_host_gives_a_tick_the_same_label(base: int, seconds: int, late: float) -> None:
    """cron fires within the second by its own clock, and what the clock shows is all that counts."""
    tick = base // seconds * seconds
    assert period_of(tick + min(2.0, seconds / 20) * abs(late), seconds) == period_of(tick, seconds)
    assert period_of(tick - min(2.0, seconds / 20) * 0.99, seconds).label == period_of(tick, seconds).label
    assert period_of(tick, seconds).end == tick + seconds
    assert period_of(tick + seconds, seconds).label != period_of(tick, seconds).label


CRONS = {  # minutes, hours as cron's fields; the period that its line would name
    "*/5 * * * *": (range(0, 60, 5), range(24), 300),
    "0 * * * *": ([0], range(24), HOUR),
    "0 */6 * * *": ([0], range(0, 24, 6), 6 * HOUR),
    "0 3 * * *": ([0], [3], DAY),
    "30 1 * * *": ([30], [1], DAY),
}


@pytest.mark.parametrize("zone", ZONES, indirect=True)
@pytest.mark.parametrize("line", CRONS)
def test_no_tick_of_a_year_is_skipped(zone: str, line: str) -> None:
    """Each wall-clock minute that matches starts once; a repeated daily time is the same period, which is wanted (O76)."""
    minutes, hours, seconds = CRONS[line]
    year = calendar.timegm((2026, 1, 1, 0, 0, 0))
    labels: dict[str, float] = {}
    skipped = []
    for instant in range(year, year + 366 * DAY, 300):
        here = time.localtime(instant)
        if here.tm_min not in minutes or here.tm_hour not in hours:
            continue
        label = period_of(instant, seconds).label
        if label in labels and (seconds <= HOUR or instant - labels[label] > 2 * HOUR):
            skipped.append(time.strftime("%F %T %z", here))
        labels.setdefault(label, instant)
    assert skipped == []
    assert len(labels) > 360


@pytest.mark.parametrize("zone", ["Europe/London", "America/New_York"], indirect=True)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # the zone is the same for every input
@given(instant=st.integers(1_767_225_600, 1_798_761_600), seconds=st.sampled_from([2 * HOUR, 6 * HOUR, DAY, 7 * DAY]))
def test_a_period_ends_where_the_next_begins(zone: str, instant: int, seconds: int) -> None:
    period = period_of(instant, seconds)
    assert period.end > instant
    assert period_of(period.end + 1, seconds).label != period.label
    assert instant > period.end - 3 or period_of(period.end - 3, seconds).label == period.label


@pytest.mark.parametrize("zone", ["UTC"], indirect=True)
def test_weeks_begin_on_monday(zone: str) -> None:
    sunday, monday = calendar.timegm((2026, 11, 29, 12, 0, 0)), calendar.timegm((2026, 11, 30, 12, 0, 0))
    assert period_of(sunday, 7 * DAY).label == "7d/2026-11-23"
    assert period_of(monday, 7 * DAY).label == "7d/2026-11-30"
