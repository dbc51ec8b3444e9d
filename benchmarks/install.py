"""Throw-away virtual environments: one with cronlock's wheel, two with the peers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PEERS = ("dislock", "filelock", "psycopg[binary]", "redis")
FREDLOCK = ("fredlock", "pottery==2.3.7", "redis<5")  # the last ones it can be started with


class NotInstalled(Exception):
    pass


def cronlock(python: str, directory: Path) -> Path:
    """The bin directory of an environment that has nothing but cronlock and what it needs: no pip, no setuptools, whose .pth
    would be paid for at every start."""
    _pip("wheel", "--no-deps", "--wheel-dir", str(directory), str(ROOT))
    return environment(python, directory / "cronlock", *map(str, directory.glob("*.whl")))


def environment(python: str, directory: Path, *requirements: str) -> Path:
    subprocess.run([python, "-m", "venv", "--without-pip", directory], check=True)
    _pip("--python", str(directory / "bin" / "python"), "install", *requirements)
    return directory / "bin"


def _pip(*words: str) -> None:
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", *words]
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    if done.returncode:
        raise NotInstalled((done.stderr or done.stdout).strip().splitlines()[-1])
