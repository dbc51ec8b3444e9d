"""`ctl`: the installed cronlockctl. `past`: runs that are over, written by the backend itself."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from cronlock.model import Grant, Run
from cronlock.registry import open_backend
from cronlock.testing import soon
from fixtures_store import until

CRONLOCKCTL = str(Path(sys.executable).with_name("cronlockctl"))


class Answer(NamedTuple):
    status: int
    out: str
    err: str


@pytest.fixture
def ctl(tmp_path: Path) -> Callable[..., Answer]:
    def run(*argv: str, backend: str = "", stdin: str = "", env: dict[str, str] | None = None) -> Answer:
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("CRONLOCK_", "KUBERNETES_"))}
        environ |= {"HOME": str(tmp_path), "PYTHONUTF8": "1"} | ({"CRONLOCK_BACKEND": backend} if backend else {}) | (env or {})
        done = subprocess.run([CRONLOCKCTL, *argv], env=environ, input=stdin, capture_output=True, text=True, timeout=60)
        return Answer(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def past(store: str) -> Callable[..., Run]:
    """past("job", took=5, ago=60, host="web1", outcome="ok"): such a run in the store's history."""

    def write(name: str, *, took: float = 1.0, ago: float = 60.0, host: str = "web1", outcome: str = "ok", label: str = "") -> Run:
        start = time.time() - ago
        run = Run(uuid.uuid4().hex[:8], uuid.uuid4().hex, host, 4711, "tester", "true", start, label)
        backend = open_backend(store)
        lease = backend.try_acquire(Grant(name, run, 30.0), soon())
        ended = lease.run.but(outcome=outcome, status=0 if outcome == "ok" else 1, end=start + took)
        lease.release(ended, soon())
        backend.close()
        return ended

    return write


@pytest.fixture
def holder(start: Callable[..., object], store: str, tmp_path: Path) -> Callable[..., object]:
    """holder("job"): a cronlock whose command runs, until `tmp_path/go` is there."""

    def hold(name: str, *options: str) -> object:
        script = f"touch {tmp_path}/in; n=0; until [ -e {tmp_path}/go ] || [ $n = 600 ]; do n=$((n + 1)); sleep .1; done"
        process = start(*options, name, "sh", "-c", script, backend=store)
        until((tmp_path / "in").exists)
        return process

    return hold
