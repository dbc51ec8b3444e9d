"""What one crontab line costs: everything from its start to its end, around `true`, free and busy."""

from __future__ import annotations

import random
from collections import defaultdict

from benchmarks.process import Gate, Took, Watch
from benchmarks.subjects import Stage, Subject
from benchmarks.table import spread, table
from instructions import NO_VALGRIND, instructions  # of the tests

ROUNDS, QUICK = 60, 5


def measure(stage: Stage, peers: dict[str, Subject], *, quick: bool) -> str:
    subjects = [*stage.ours, *peers.values()]
    commands = {("python", "free"): stage.baseline}
    for number, subject in enumerate(subjects):
        commands[subject.name, "free"] = subject(f"free{number}", "/bin/true")
        commands[subject.name, "busy"] = subject(f"busy{number}", "/bin/true")
    gate = Gate(stage.directory, "busy")
    holders = gate.hold([subject(f"busy{number}", *gate.job) for number, subject in enumerate(subjects)])
    expected = {(subject.name, "busy"): subject.busy for subject in subjects}
    taken: dict[tuple[str, str], list[Took]] = defaultdict(list)
    for _ in range(QUICK if quick else ROUNDS):
        for key in random.sample(list(commands), len(commands)):
            took = commands[key].time()
            if took.status != expected.get(key, 0):
                raise RuntimeError(f"{key} ended with {took.status}")
            taken[key].append(took)
    gate.open()
    Watch(holders).finish()
    return _table(stage, subjects, taken) + _counted(stage)


def _table(stage: Stage, subjects: list[Subject], taken: dict[tuple[str, str], list[Took]]) -> str:
    base = taken["python", "free"]

    def ratios(key: tuple[str, str], what: str) -> str:
        return spread([getattr(took, what) / getattr(one, what) for took, one in zip(taken[key], base, strict=True)])

    def milliseconds(values: list[Took]) -> str:
        return spread([took.wall * 1000 for took in values], 0)

    rows = [
        [s.name, ratios((s.name, "free"), "wall"), ratios((s.name, "free"), "cpu"), ratios((s.name, "busy"), "wall"),
         ratios((s.name, "busy"), "cpu"), milliseconds(taken[s.name, "free"])]
        for s in subjects
    ]  # fmt: skip
    rows.append(["`python -I -c pass`", "1", "1", "", "", milliseconds(base)])
    return table(["around `true`", "wall", "CPU", "wall, busy", "CPU, busy", "ms"], rows)


def _counted(stage: Stage) -> str:
    if NO_VALGRIND:
        return f"\nInstructions were not counted: {NO_VALGRIND}.\n"
    base = instructions(*stage.baseline)
    commands = {subject.name: subject("counted", "/bin/true") for subject in stage.ours}
    rows = [[name, f"{instructions(*command) / base:.2f}"] for name, command in commands.items()]
    return "\n" + table(["instructions, × `python -I -c pass`", ""], [*rows, ["`python -I -c pass`, millions", f"{base / 1e6:.1f}"]])
