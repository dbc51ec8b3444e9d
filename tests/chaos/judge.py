"""Did two commands ever act at the same time? From the lines that they wrote, in the order in which they wrote them.

A run lasts from its first line to its last, whoever of its tree wrote it and however it ended. Two runs overlap if
either the clock or the order of the lines says so: the order also knows of a process that was frozen between
looking at the clock and writing, the clock of one that ran before it came to write.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import overlap

SLACK = 200_000_000  # nanoseconds by which the store's word on its holder may be late


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


class Hold(NamedTuple):
    """The store named this slot as the holder of one grant, from `at` until `until` at least. It is asked all the time."""

    slot: str
    grant: str
    at: int
    until: int


class Gap(NamedTuple):
    """Nobody acted from `at` for `seconds`, of which the last `free` had nothing in the way any more. `recovery` counts from
    the last fault that hit whoever the store had as the holder then: `hits`, in words. `idle` times meanwhile the lock was given
    to one that was frozen or cut off already."""

    at: int
    seconds: float
    free: float
    recovery: float
    hits: tuple[str, ...] = ()
    idle: int = 0


def gaps(
    found: list[Acts], faults: Iterable[Fault], blocking: Iterable[str], end: int, holds: Iterable[Hold] = (), networks: int = 1
) -> list[Gap]:
    """In the way stands a store that is down, and what is frozen so that the lock is still held, or is granted to it:
    the kinds in `blocking`. `end`: when the contenders were no longer meant to run."""
    faults, holds = list(faults), list(holds)
    stands = [fault for fault in faults if not fault.slot or fault.kind in blocking]
    said, last = [], None
    for acts in found:
        start = acts.run.start
        if last is not None and last < start <= end:
            free = max([last, *(f.until for f in stands if f.at < start and f.until > last)])
            hit = sorted((f.at, f, h) for h in holds for f in faults if last < f.at < start and _hits(f, h, networks))
            told = tuple(f"{f.kind} {f.slot} ({h.slot} had it)" for _, f, h in hit)
            asleep = [f for f in faults if f.kind in ("cut", "freeze-cronlock")]
            idle = sum(last < h.at < start and any(_of(f, h, networks) and f.at < h.at < f.until for f in asleep) for h in holds)
            since = max([free, *(at for at, *_ in hit)])
            said.append(Gap(int(last), *(max(0.0, (start - at) / 1e9) for at in (last, free, since)), told, idle))
        last = acts.run.end if last is None else max(last, acts.run.end)
    return said


def _hits(fault: Fault, hold: Hold, networks: int) -> bool:
    """Not if it came before the grant: what nobody can use has to go again at once."""
    return _of(fault, hold, networks) and hold.at - SLACK <= fault.at <= hold.until + SLACK


def _of(fault: Fault, hold: Hold, networks: int) -> bool:
    """Its own or its host's: slot N is on host hN, N modulo `networks`."""
    return fault.slot in (hold.slot, f"h{int(hold.slot[1:]) % networks}")
