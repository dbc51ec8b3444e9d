"""`cronlockctl status`: what is held, by whom, for how long."""

from __future__ import annotations

from cronlock import clock, durations
from cronlock.ctl.table import columns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from cronlock.model import Status


def table(found: Sequence[Status], now: float) -> str:
    """Two lines a lock, or a sentence when there is none."""
    if not found:
        return "no lock has been used here yet"
    return columns(("LOCK", "STATE", "HOST", "PID", "SINCE", "FOR"), [_row(status, now) for status in found])


def _row(status: Status, now: float) -> tuple[str, ...]:
    run = status.run
    if run is None:
        return status.name, "held" if status.held else "free", "?" if status.held else "", "", "", status.detail
    if status.held and not run.outcome:
        return status.name, "held", run.host, str(run.pid), clock.stamp(run.start), _span(now - run.start)
    state = "kept" if status.held or status.held_until > now else f"free ({run.outcome or 'vanished'})"
    return status.name, state, run.host, str(run.pid), clock.stamp(run.start), _span(run.end - run.start) if run.end else ""


def _span(seconds: float) -> str:
    return durations.show(max(0.0, round(seconds, 1 if seconds < 10 else 0)))
