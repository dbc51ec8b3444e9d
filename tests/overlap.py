"""Did two runs overlap? An independent judge: it knows the record file and nothing of cronlock.

    overlap.py record FILE LEAST MOST    a job: writes its start, lasts between LEAST and MOST seconds, writes its end
    overlap.py check FILE                prints what is wrong; status 1 if anything is

A line is `start|end NANOSECONDS RUN HOST TICK FENCE`, written in one O_APPEND write; times are CLOCK_MONOTONIC,
which all processes of one kernel share whatever their wall clocks say. `-` stands for an unknown tick or fence.
"""

from __future__ import annotations

import math
import os
import random
import select
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple


class Run(NamedTuple):
    """One run of the job; `end` is infinite while nobody saw it."""

    id: str
    host: str
    tick: str
    fence: str
    start: int
    end: float = math.inf


def read(lines: Iterable[str]) -> list[Run]:
    """Runs in the order of their starts. ValueError: a torn line, an end without start, a run that started or ended twice."""
    runs: dict[str, Run] = {}
    for number, line in enumerate(lines, 1):
        try:
            word, nanoseconds, run, host, tick, fence = line.split()
            at = int(nanoseconds)
        except ValueError:
            raise ValueError(f"line {number} is torn: {line!r}") from None
        if word == "start" and run not in runs:
            runs[run] = Run(run, host, tick, fence, at)
        elif word == "end" and run in runs and runs[run].end == math.inf:
            runs[run] = runs[run]._replace(end=at)
        else:
            raise ValueError(f"line {number} does not fit what came before: {line!r}")
    return sorted(runs.values(), key=lambda run: run.start)


def cut_short(runs: Iterable[Run], host: str, at: int) -> list[Run]:
    """The same runs, knowing that `host` died at `at`, and whatever ran there with it."""
    return [run._replace(end=at) if run.host == host and run.end == math.inf and run.start < at else run for run in runs]


def overlaps(runs: Sequence[Run]) -> list[tuple[Run, Run]]:
    """Every pair that ran at the same time; a run without an end lasts for ever."""
    ordered = sorted(runs, key=lambda run: run.start)
    return [(one, other) for n, one in enumerate(ordered) for other in ordered[n + 1 :] if other.start < one.end]


def doubles(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Ticks that had more than one run."""
    by_tick = defaultdict(list)
    for run in runs:
        by_tick[run.tick].append(run)
    return {tick: had for tick, had in by_tick.items() if len(had) > 1}


def missed(runs: Iterable[Run], ticks: Iterable[str]) -> list[str]:
    """Those of `ticks` that had no run."""
    had = {run.tick for run in runs}
    return [tick for tick in ticks if tick not in had]


def unfinished(runs: Iterable[Run]) -> list[Run]:
    """Runs whose end nobody saw."""
    return [run for run in runs if run.end == math.inf]


def backward_fences(runs: Sequence[Run]) -> list[tuple[Run, Run]]:
    """Neighbours in time whose fencing token did not grow."""
    fenced = [run for run in sorted(runs, key=lambda run: run.start) if run.fence != "-"]
    return [(one, other) for one, other in pairwise(fenced) if int(other.fence) <= int(one.fence)]


def record(path: str, least: float, most: float) -> None:
    """The job; TERM ends it early, with an end. It waits in select(2): libfaketime 0.9.10 breaks time.sleep() (wolfcw/libfaketime#426)."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    run = os.environ.get("CRONLOCK_RUN_ID") or os.urandom(8).hex()
    rest = f"{run} {os.uname().nodename} {os.environ.get('TICK', '-')} {os.environ.get('CRONLOCK_RUN_FENCE', '-')}"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.write(file, f"start {time.monotonic_ns()} {rest}\n".encode())
    try:
        select.select([], [], [], random.uniform(least, most))
    finally:
        os.write(file, f"end {time.monotonic_ns()} {rest}\n".encode())


def check(path: str) -> int:
    with open(path) as file:
        runs = read(file)
    for one, other in overlaps(runs):
        early = (one.end - other.start) / 1e9
        print(f"overlap: {other.id} on {other.host} started {early:.3f} s before {one.id} on {one.host} ended")
    for tick, had in doubles(runs).items():
        print(f"double: tick {tick} had {len(had)} runs, on {', '.join(run.host for run in had)}")
    for run in unfinished(runs):
        print(f"no end: {run.id} on {run.host}")
    for one, other in backward_fences(runs):
        print(f"fence: {other.fence} after {one.fence}")
    print(f"{len(runs)} runs: {dict(Counter(run.host for run in runs))}", file=sys.stderr)
    return 1 if overlaps(runs) or doubles(runs) or unfinished(runs) or backward_fences(runs) else 0


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["record", path, least, most]:
            record(path, float(least), float(most))
        case ["check", path]:
            sys.exit(check(path))
        case _:
            sys.exit(__doc__)
