"""`cronlockctl history`: how the last runs went, how long they took, and which of them two hosts probably both had."""

from __future__ import annotations

from cronlock import clock
from cronlock.ctl.status import ended, took
from cronlock.ctl.table import Row, columns, fancy
from cronlock.observers import plain_run
from cronlock.usual import doubles

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from cronlock.model import Run
    from cronlock.protocol import Backend

SCHEMA = 1
BAR = 10  # characters of the longest run
REMEDY = (
    "x2: started in the same minute on two hosts, probably the same tick twice, since\n"
    "    the first had ended before the second one's clock came to it.\n"
    "    cronlock --once-per with the crontab line's period (1m, 1h, 1d) prevents it."
)


def table(runs: Sequence[Run]) -> str:
    """One line a run, oldest first."""
    if not runs:
        return "no run has been recorded here yet"
    twice = doubles(runs)
    longest = max((run.end - run.start for run in runs if run.end is not None), default=0.0)
    rows = [_row(run, longest, run.run_id in twice) for run in runs]
    started = "STARTED " + clock.stamp(runs[-1].start)[-5:]
    text = columns((started, "HOST", "PID", "OUTCOME", "TOOK", "", ""), rows, elastic=("HOST",), painted="OUTCOME")
    return text + (f"\n\n{REMEDY}" if twice else "")


def _row(run: Run, longest: float, double: bool) -> Row:
    started = clock.stamp(run.start)[:-5]
    look = "good" if run.outcome == "ok" else "odd" if run.outcome == "interrupted" else "bad"
    return Row((started, run.host, str(run.pid), ended(run), took(run), "x2" if double else "", _bar(run, longest)), look)


def _bar(run: Run, longest: float) -> str:
    if run.end is None or longest <= 0:
        return ""
    eighths = max(0, round((run.end - run.start) / longest * BAR * 8))
    smooth = "█" * (eighths // 8) + ("", *"▏▎▍▌▋▊▉")[eighths % 8]
    return fancy(smooth or "▏", "#" * max(1, round(eighths / 8)))


def as_json(backend: Backend, name: str, runs: Sequence[Run]) -> dict[str, object]:
    twice = doubles(runs)
    return {
        "v": SCHEMA,
        "store": backend.where,
        "name": name,
        "runs": [plain_run(run) | {"double": run.run_id in twice} for run in runs],
    }
