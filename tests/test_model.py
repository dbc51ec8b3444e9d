"""docs/model: spin looks at every course that the lease can take. The sound one has no fault, each broken one has."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

MODEL = Path(__file__).parents[1] / "docs" / "model" / "lease.pml"
SOUND = {
    "hosts, delays, lost and late messages": ("RUNS=2", "FAILOVERS=0"),
    "a lagging failover": ("RUNS=2", "FAILOVERS=1", "PROMPT"),
}
BROKEN = {
    "no grace": ("NO_GRACE", "RUNS=2", "FAILOVERS=0"),
    "unconditional delete": ("UNCONDITIONAL_DELETE", "FAILOVERS=0"),
    "validity counted from the answer": ("COUNT_FROM_ANSWER", "RUNS=2", "FAILOVERS=0"),
    "validity counted from the last of several tries": ("COUNT_FROM_LAST_TRY", "RUNS=2", "FAILOVERS=0"),
    "regain from a lease that is still valid": ("REGAIN_FROM_A_LIVE_LEASE", "RUNS=2", "PROMPT"),
    "regain by equal numbers": ("REGAIN_BY_NUMBER", "RUNS=2", "PROMPT"),
}


def spin(directory: Path, *defines: str) -> str:
    """pan's report."""
    missing = [name for name in ("spin", "gcc") if not shutil.which(name)]
    if missing:
        say = pytest.fail if os.environ.get("CI") == "true" and os.geteuid() == 0 else pytest.skip
        say(f"needs Debian's packages {' '.join(missing)}")
    subprocess.run(["spin", "-a", *(f"-D{define}" for define in defines), str(MODEL)], cwd=directory, check=True, capture_output=True)
    subprocess.run(["gcc", "-O1", "-w", "-DSAFETY", "-DMEMLIM=3000", "-o", "pan", "pan.c"], cwd=directory, check=True)
    done = subprocess.run(["./pan", "-m3000000", "-w22"], cwd=directory, capture_output=True, text=True, timeout=120)
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", SOUND)
def test_at_most_one_acts(name: str, tmp_path: Path) -> None:
    said = spin(tmp_path, *SOUND[name])
    assert "errors: 0" in said, said
    assert "not completed" not in said, said
    assert "max search depth too small" not in said, said


@pytest.mark.parametrize("name", BROKEN)
def test_without_it_two_act(name: str, tmp_path: Path) -> None:
    said = spin(tmp_path, *BROKEN[name])
    assert "assertion violated" in said, said
