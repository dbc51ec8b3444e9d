"""Many starts in one moment: who wins, how soon all others have left, and who errs."""

from __future__ import annotations

import os
import random
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.process import PATIENCE, Command, Gate, Watch, stat, until
from benchmarks.subjects import Stage, Subject
from benchmarks.table import spread, table

SIZES, QUICK_SIZES = (50, 200, 500, 1000), (20,)
DIFFERENT, QUICK_DIFFERENT = 200, 20
BESIDE, QUICK_BESIDE = 50, 4
ROUNDS, QUICK_ROUNDS = 5, 2


class Outcome(NamedTuple):
    winners: int
    statuses: Counter[int]  # of those that did not win
    decided: float  # seconds until the last of them had left
    first: float  # seconds until the winner's command ran

    def errors(self, busy: int) -> str:
        wrong = {status: count for status, count in self.statuses.items() if status != busy}
        return ", ".join(f"{count} × exit {status}" for status, count in wrong.items()) or "0"


def measure(stage: Stage, peers: dict[str, Subject], *, quick: bool) -> str:
    rows = []
    for size in QUICK_SIZES if quick else SIZES:
        for subject in stage.ours:
            seen = one_lock(stage, subject, f"herd{size}-{subject.name}", size)
            rows.append([size, subject.name, seen.winners, seen.errors(subject.busy), f"{seen.first:.2f}", f"{seen.decided:.2f}"])
    for subject in stage.ours:
        size = QUICK_DIFFERENT if quick else DIFFERENT
        ran, errors, seconds = different_locks(stage, subject, size)
        rows.append([f"{size}, a lock each", subject.name, ran, errors, "", f"{seconds:.2f}"])
    head = ["starts at once", "", "ran", "errors", "s, the command runs", "s, all others have left"]
    return table(head, rows) + "\n" + _beside(stage, peers, *((QUICK_BESIDE, QUICK_ROUNDS) if quick else (BESIDE, ROUNDS)))


def _beside(stage: Stage, peers: dict[str, Subject], size: int, rounds: int) -> str:
    """The same number of starts for everybody, in turns."""
    subjects = [*stage.ours, *peers.values()]
    taken: dict[str, list[float]] = {subject.name: [] for subject in subjects}
    for turn in range(rounds):
        for subject in random.sample(subjects, len(subjects)):
            taken[subject.name].append(one_lock(stage, subject, f"beside{turn}-{subject.name}", size).decided)

    def ratio(name: str) -> str:
        if "dislock" not in taken:
            return ""
        return f"{statistics.median(d / own for d, own in zip(taken['dislock'], taken[name], strict=True)):.1f}"

    rows = [[name, spread(seconds, 2), ratio(name)] for name, seconds in taken.items()]
    return table([f"{size} starts at once", "s, all but one have left", "times sooner than dislock"], rows)


def one_lock(stage: Stage, subject: Subject, lock: str, size: int) -> Outcome:
    """The winner lasts until everybody else has left."""
    lock = "".join(c for c in lock if c.isalnum() or c == "-")
    gate = Gate(stage.directory, lock)
    pids, begin, wall = _at_once([subject(lock, *gate.job)] * size)
    watch, statuses, decided = Watch(pids), Counter[int](), begin
    while statuses.total() + (winners := len(gate.running())) < size:
        if time.perf_counter() > begin + PATIENCE:
            raise TimeoutError(f"{subject.name}: {size} starts are not decided")
        for ended in watch.ended(0.05):
            statuses[ended.status] += 1
            decided = ended.at
    first = gate.since - wall
    gate.open()
    watch.finish()
    return Outcome(winners, statuses, decided - begin, first)


def different_locks(stage: Stage, subject: Subject, size: int) -> tuple[int, str, float]:
    ran = stage.directory / f"different-{id(subject)}"
    commands = [subject(f"different{number}", "/bin/sh", "-c", f"echo >>{ran}") for number in range(size)]
    pids, begin, _ = _at_once(commands)
    watch, statuses, last = Watch(pids), Counter[int](), begin
    while statuses.total() < size:
        for ended in watch.ended(PATIENCE):
            statuses[ended.status] += 1
            last = ended.at
    return len(ran.read_text()), Outcome(0, statuses, 0, 0).errors(0), last - begin


def _at_once(commands: Sequence[Command]) -> tuple[list[int], float, float]:
    """Their pids, and when they were let go, on both clocks."""
    read, write = os.pipe()
    pids = [command.behind("gate").start(stdin=read) for command in commands]
    os.close(read)
    until("all stand behind the gate", lambda: all(stat(pid)[0] == "S" for pid in pids))
    begin, wall = time.perf_counter(), time.time()
    os.close(write)
    return pids, begin, wall
