"""How much a plain run computes, against a Python that does nothing: counted, so a busy machine makes no difference.

The bounds are a fifth above what was counted when they were set. Whoever makes it faster lowers them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from instructions import NO_VALGRIND, instructions
from test_imports import MAIN

BOUNDS = {"flock": 1.8, "redis": 1.85, "postgresql": 2.1}


def test_a_plain_run_computes_no_more_than_this(store: str, tmp_path: Path) -> None:
    if NO_VALGRIND:
        (pytest.fail if os.environ.get("CI") == "true" and os.geteuid() == 0 else pytest.skip)(NO_VALGRIND)
    environ = {"HOME": str(tmp_path), "CRONLOCK_BACKEND": store}
    python = (sys.executable, "-I")
    once = [*python, *MAIN, "j", "true"]
    instructions(once, environ)  # compiles, if need be, and from now on there is a state to be read
    ratio = instructions(once, environ) / instructions([*python, "-c", "pass"], environ)
    assert ratio < BOUNDS[store.partition(":")[0]]
