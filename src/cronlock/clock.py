"""Two clocks: the lease's, which counts suspend and is never stepped, and the wall's, for people and period labels."""

from __future__ import annotations

import time


def now() -> float:
    """Seconds on the lease clock. CLOCK_BOOTTIME: a laptop's or VM's sleep counts (clock_gettime(2)),
    because the store's clock went on too; CLOCK_MONOTONIC would stand still."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def wall() -> float:
    """Seconds since the epoch by this host's clock."""
    return time.time()


def left(until: float) -> float:
    """Seconds until `until` on the lease clock, never negative."""
    return max(0.0, until - now())


def stamp(epoch: float) -> str:
    """Local date and time with its offset, so that two hosts' lines can be compared."""
    return time.strftime("%Y-%m-%d %H:%M:%S%z", time.localtime(epoch))
