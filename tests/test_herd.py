"""Sixty starts at once: one runs, the others leave with `busy` and no word, nobody errs. `python -m benchmarks` does it with a thousand."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from fixtures_store import Started, until

MANY = 60
JOB = "echo $$ >>$T/ran; until [ -e $T/end ]; do sleep 0.1; done"


def test_of_sixty_at_once_one_runs_and_the_others_leave(store: str, start: Callable[..., Started], tmp_path: Path) -> None:
    herd = [start("j", "sh", "-c", JOB, backend=store) for _ in range(MANY)]
    (ran := tmp_path / "ran").touch()
    until(lambda: sum(one.poll() is not None for one in herd) + len(ran.read_text().split()) >= MANY, 120)
    (tmp_path / "end").touch()
    assert Counter(one.end() for one in herd) == {(75, "", ""): MANY - 1, (0, "", ""): 1}
    assert len(ran.read_text().split()) == 1


def test_sixty_locks_at_once_are_sixty_runs(store: str, start: Callable[..., Started], tmp_path: Path) -> None:
    began = time.monotonic()
    herd = [start(f"j{number}", "sh", "-c", "echo $$ >>$T/ran", backend=store) for number in range(MANY)]
    assert Counter(one.end(120) for one in herd) == {(0, "", ""): MANY}, f"after {time.monotonic() - began:.0f} s"
    assert len((tmp_path / "ran").read_text().split()) == MANY
