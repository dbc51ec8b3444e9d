"""`cronlockctl history`: how the last runs went."""

from __future__ import annotations

from cronlock import clock, durations
from cronlock.ctl.table import columns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from cronlock.model import Run


def table(runs: Sequence[Run]) -> str:
    """One line a run."""
    if not runs:
        return "no run has been recorded here yet"
    return columns(("STARTED", "HOST", "PID", "OUTCOME", "STATUS", "TOOK"), [_row(run) for run in runs])


def _row(run: Run) -> tuple[str, ...]:
    took = durations.show(max(0.0, round(run.end - run.start, 3 if run.end - run.start < 10 else 0))) if run.end is not None else "?"
    return clock.stamp(run.start), run.host, str(run.pid), run.outcome, "" if run.status is None else str(run.status), took
