"""Did two commands ever act at the same time? From the lines that they wrote, in the order in which they wrote them.

A run lasts from its first line to its last, whoever of its tree wrote it and however it ended. Two runs overlap if
either the clock or the order of the lines says so: the order also knows of a process that was frozen between
looking at the clock and writing, the clock of one that ran before it came to write.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import overlap


class Acts(NamedTuple):
    """One run: `run.start` and `run.end` are its first and last act, `run.tick` its kind; then the numbers of these lines."""

    run: overlap.Run
    first: int
    last: int
    ended: bool


class Fault(NamedTuple):
    """`slot` is empty for what befalls the store. In nanoseconds of CLOCK_MONOTONIC; `until`: thawed, up again, healed."""

    kind: str
    slot: str
    at: int
    until: int


class Overlap(NamedTuple):
    one: Acts
    other: Acts
    seconds: float  # that the first still acted after the second had begun
    window: str  # the kind of the fault that docs/guarantees.md names as its reason; empty: there is none


def read(lines: Iterable[str]) -> list[Acts]:
    """In the order of their first acts. ValueError: a line that nobody should have written."""
    found: dict[str, Acts] = {}
    for number, line in enumerate(lines):
        word, nanoseconds, run, slot, kind, fence = line.split()
        at = int(nanoseconds)
        known = found.get(run)
        if word == "start" and not known:
            found[run] = Acts(overlap.Run(run, slot, kind, fence, at, at), number, number, False)
        elif word in ("beat", "end") and known and known.run.fence == fence:
            found[run] = Acts(known.run._replace(end=max(known.run.end, at)), known.first, number, known.ended or word == "end")
        else:
            raise ValueError(f"line {number} does not fit what came before: {line!r}")
    return sorted(found.values(), key=lambda acts: acts.run.start)


def overlaps(found: list[Acts], faults: Iterable[Fault], grace: float) -> list[Overlap]:
    by_id = {acts.run.id: acts for acts in found}
    by_clock = overlap.overlaps([acts.run for acts in found])
    by_order = overlap.overlaps([acts.run._replace(start=acts.first, end=acts.last) for acts in found])
    pairs = {tuple(sorted((one.id, other.id), key=lambda run: by_id[run].run.start)) for one, other in by_clock + by_order}
    faults = list(faults)
    said = []
    for one, other in ((by_id[a], by_id[b]) for a, b in sorted(pairs)):
        seconds = (min(one.run.end, other.run.end) - other.run.start) / 1e9
        said.append(Overlap(one, other, seconds, _window(one, other, faults, grace)))
    return said


def _window(one: Acts, other: Acts, faults: list[Fault], grace: float) -> str:
    """The named window an overlap falls into, if it is no longer than that one may be."""
    look = 1.0  # both processes look once a second
    allowed = {"emptied": grace + look, "both-frozen": look, "both-killed": float("inf")}
    for fault in faults:
        for run in (one.run, other.run):
            # a lock that was granted just before the store forgot it has its first act a moment after
            mine = fault.at <= run.end and (not fault.slot or (fault.slot == run.host and run.start <= fault.until))
            if fault.kind in allowed and mine and min(one.run.end, other.run.end) <= fault.until + allowed[fault.kind] * 1e9:
                return fault.kind
    return ""


class Gap(NamedTuple):
    """Nobody acted from `at` for `seconds`, of which the last `recovery` had nothing any more that stood in the way."""

    at: int
    seconds: float
    recovery: float


def gaps(found: list[Acts], faults: Iterable[Fault], blocking: Iterable[str], end: int) -> list[Gap]:
    """In the way stands a store that is down, and what is frozen so that the lock is still held, or is granted to it:
    the kinds in `blocking`. `end`: when the contenders were no longer meant to run."""
    stands = [fault for fault in faults if not fault.slot or fault.kind in blocking]
    said, last = [], None
    for acts in found:
        if last is not None and last < acts.run.start <= end:
            free = max([last, *(f.until for f in stands if f.at < acts.run.start and f.until > last)])
            said.append(Gap(int(last), (acts.run.start - last) / 1e9, max(0.0, (acts.run.start - free) / 1e9)))
        last = acts.run.end if last is None else max(last, acts.run.end)
    return said
