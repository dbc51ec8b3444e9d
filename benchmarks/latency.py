"""From a release to the next: when the waiter's command runs, and when the holder has left."""

from __future__ import annotations

import os
import selectors
import time

from benchmarks.process import Gate, Watch, settled
from benchmarks.subjects import Stage, Subject
from benchmarks.table import spread, table

ROUNDS, QUICK = 40, 5
WAIT = ("-w", "600")


def measure(stage: Stage, peers: dict[str, Subject], *, quick: bool) -> str:
    subjects = [*stage.ours, stage.flock]
    taken: dict[str, list[tuple[float, float]]] = {subject.name: [] for subject in subjects}
    for turn in range(QUICK if quick else ROUNDS):
        for number, subject in enumerate(subjects):
            taken[subject.name].append(hand_over(stage, subject, f"next{turn}-{number}"))
    rows = [[name, *(spread([1000 * one[column] for one in seen]) for column in (0, 1))] for name, seen in taken.items()]
    return table(["ms after the holder's command was told to end", "the waiter's command runs", "the holder has left"], rows)


def hand_over(stage: Stage, subject: Subject, lock: str) -> tuple[float, float]:
    gate = Gate(stage.directory, lock)
    bell = stage.directory / f"{lock}.bell"
    os.mkfifo(bell)
    ear = os.open(bell, os.O_RDONLY | os.O_NONBLOCK)
    [holder] = gate.hold([subject(lock, *gate.job)])
    waiter = subject(lock, "/bin/sh", "-c", f"echo >{bell}", options=WAIT).start()
    settled(waiter)
    watch = Watch([holder])
    selector = selectors.DefaultSelector()
    selector.register(ear, selectors.EVENT_READ)
    selector.register(watch, selectors.EVENT_READ)
    begin = time.perf_counter()
    gate.open()
    runs = left = 0.0
    while not (runs and left):
        for key, _ in selector.select(30):
            if key.fileobj is watch:
                left = watch.ended(0)[0].at - begin
            elif not runs:
                runs = time.perf_counter() - begin
            selector.unregister(key.fileobj)
    os.close(ear)
    os.waitpid(waiter, 0)
    return runs, left
