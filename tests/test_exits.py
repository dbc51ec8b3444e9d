"""Every outcome and every error has one status, and a skip is never mistaken for anything else."""

import subprocess
import sys

import pytest

from cronlock import errors, exits
from cronlock.model import Outcome


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (Outcome("ok", 0), 0),
        (Outcome("failed", 3), 3),
        (Outcome("failed", 255), 255),
        (Outcome("killed", signal=9), 137),
        (Outcome("timed-out", signal=15), 124),
        (Outcome("timed-out", 0), 124),
        (Outcome("lost", signal=15, detail="the server says so"), 76),
        (Outcome("lost", 5, detail="continued"), 5),
        (Outcome("busy"), 75),
        (Outcome("done"), 75),
        (Outcome("unavailable", 75), 75),
        (Outcome("interrupted", signal=15), 143),
        (Outcome("ok"), 70),  # nobody knows how it ended, which is never success
    ],
)
def test_outcomes(outcome: Outcome, status: int) -> None:
    assert exits.status(outcome) == status


def test_the_conflict_code_is_for_skips_only() -> None:
    assert [exits.status(Outcome(w, 3), 9) for w in ("busy", "done", "failed")] == [9, 9, 3]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.UsageError("x"), 64),
        (errors.BackendError("x"), 69),
        (errors.PermissionDenied("x"), 77),
        (errors.ConfigError("x"), 78),
        (errors.CommandError("x", 127), 127),
        (RuntimeError("x"), 70),
    ],
)
def test_errors(error: BaseException, status: int) -> None:
    assert exits.status(error) == status


def test_control_c_before_anything_runs_is_no_traceback() -> None:
    script = "import os\nfrom cronlock import cli\ncli.settle = lambda *_: os.kill(os.getpid(), 2)\ncli.main()"
    done = subprocess.run([sys.executable, "-c", script, "job", "true"], capture_output=True, text=True, check=False, timeout=20)
    assert (done.returncode, done.stderr) == (130, "")
