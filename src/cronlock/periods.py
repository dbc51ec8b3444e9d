"""Which period an instant belongs to: instant + period + zone -> label. Pure; the zone is the process's (TZ, CRON_TZ).

The label is this host's own clock at process start, rounded down. cron fires by the same clock, so hosts that are
minutes apart agree on the label although they disagree on the instant; the store's clock would not do that.
"""

from __future__ import annotations

import time

from cronlock import durations
from cronlock.model import Value

HOUR, DAY = 3600, 86400


class Period(Value):
    label: str  # `5m/2026-11-29T15:05Z`, `1d/2026-11-29`: the same on every host for the same tick
    end: float  # epoch seconds when the next one begins


def check(seconds: float) -> int:
    """The period in whole seconds. ValueError, with the reason, for one that does not tile hours or days."""
    whole = int(seconds)
    tiles = HOUR % whole == 0 if 0 < whole <= HOUR else whole > 0 and (DAY % whole == 0 or whole % DAY == 0)
    if whole != seconds or not tiles:
        raise ValueError(
            f"{durations.show(seconds)}: a period must divide an hour (1m, 5m, 30m, 1h), divide a day (2h, 6h, 12h) or be whole "
            "days (1d, 7d), or its boundaries would wander over the clock and skip ticks"
        )
    return whole


def period_of(instant: float, seconds: int) -> Period:
    """The period of an epoch instant. Up to an hour on the UTC grid; longer ones on the local wall clock, since on a UTC
    grid `0 0 * * *` in London falls into one UTC day twice a year's change, and is skipped once.

    An instant up to min(2 s, period/20) before a boundary belongs to the next period: timers fire early, clocks step back.
    """
    shifted = instant + min(2.0, seconds / 20)
    name = durations.show(float(seconds))
    if seconds <= HOUR:
        start = shifted // seconds * seconds
        return Period(time.strftime(f"{name}/%Y-%m-%dT%H:%M:%SZ", time.gmtime(start)).replace(":00Z", "Z"), start + seconds)
    here = time.localtime(shifted)
    if seconds < DAY:
        second = here.tm_hour * HOUR + here.tm_min * 60 + here.tm_sec
        first = second // seconds * seconds
        label = time.strftime(f"{name}/%Y-%m-%dT", here) + f"{first // HOUR:02}:{first % HOUR // 60:02}"
        return Period(label, _local(here, first + seconds))
    days = seconds // DAY
    ordinal = _ordinal(here)
    first_day = ordinal // days * days
    began = time.gmtime((first_day - MONDAY) * DAY)
    return Period(time.strftime(f"{name}/%Y-%m-%d", began), _local(here, (first_day + days - ordinal) * DAY))


MONDAY = 3  # 1970-01-01 was a Thursday: counting from the Monday before makes weeks begin on Mondays


def _ordinal(here: time.struct_time) -> int:
    """Days since Monday 1969-12-29 by the local calendar."""
    import calendar

    return calendar.timegm((here.tm_year, here.tm_mon, here.tm_mday, 0, 0, 0)) // DAY + MONDAY


def _local(here: time.struct_time, second: int) -> float:
    """The instant `second` wall-clock seconds after the local midnight of `here`."""
    day, rest = divmod(second, DAY)
    clock = (here.tm_year, here.tm_mon, here.tm_mday + day, rest // HOUR, rest % HOUR // 60, rest % 60, 0, 0, -1)
    return time.mktime(clock)
