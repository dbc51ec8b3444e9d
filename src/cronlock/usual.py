"""What is usual for a job, by its history, and what is not: overdue runs, and runs that two hosts probably both had."""

from __future__ import annotations

import os

from cronlock.model import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from cronlock.model import Run

ENOUGH = 5  # runs, before anything is called unusual
TIMES = 3  # a run is overdue once it has taken so many times the usual
SKEW = 60.0  # seconds that another host's clock may be apart from ours before its runs look longer than they are
LEAST = 5.0  # seconds that any run may take without a word; nor is the history read for a shorter one


class Usual(Value):
    median: float  # seconds
    p95: float
    runs: int  # that this is known from

    @property
    def limit(self) -> float | None:
        """Seconds after which a run is overdue; None: too little is known."""
        return max(LEAST, TIMES * self.median) if self.runs >= ENOUGH else None


def usual(history: Sequence[Run]) -> Usual | None:
    """Of the runs that went well; if none did, of those that came to an end by themselves: a job that fails at once says
    nothing about how long it takes."""
    for word in ("ok", "failed"):
        took = sorted(max(0.0, run.end - run.start) for run in history if run.outcome == word and run.end is not None)
        if took:
            middle = len(took) // 2
            median = took[middle] if len(took) % 2 else (took[middle - 1] + took[middle]) / 2
            return Usual(median, took[-(-len(took) * 95 // 100) - 1], len(took))
    return None


def overdue(run: Run, known: Usual | None, now: float) -> bool:
    """Whether a run that is still going has taken far longer than is usual. Its start is by its own host's clock."""
    limit = known.limit if known else None
    apart = 0.0 if run.host == os.uname().nodename else SKEW
    return limit is not None and now - run.start > limit + apart


def doubles(history: Sequence[Run]) -> set[str]:
    """The run_ids of probable doubles: two hosts started in the same minute, each by its own clock, which is how cron's
    hosts with clocks apart run the same tick twice. With --once-per that can't be."""
    minutes: dict[int, list[Run]] = {}
    for run in history:
        if not run.label:
            minutes.setdefault(int(run.start // 60), []).append(run)
    return {run.run_id for runs in minutes.values() if len({run.host for run in runs}) > 1 for run in runs}
