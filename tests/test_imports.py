"""What a plain run imports, on each backend. Every crontab line on every server pays for it at every tick, so a module more is
either needed or a mistake, and shows up here. `python -I -X importtime scripts/cronlock NAME true` shows what it costs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from fixtures_store import Started, until

MAIN = (str(Path(__file__).parents[1] / "scripts/cronlock"),)  # what is installed

OURS = """arguments backends backends.urls cli clock config durations errors exits guard lean lease local model observers options periods
          registry run signals state tree usual"""
OTHERS = "__future__ _ctypes _json _socket errno gc pwd select"
BESIDES = {  # ours, and others
    "flock": ("backends.files backends.flock backends.mounts", "fcntl"),
    "redis": ("backends.dial backends.redis backends.redis_link backends.redis_scripts backends.redis_url backends.resp", "hiredis"),
    "postgresql": ("backends.dial backends.libpq backends.postgresql backends.postgresql_session backends.postgresql_sql", "itertools"),
}

# for the file's name that says whether this host has warned of a holder that has run for five seconds or more
LATELY = {"_blake2"}


def loaded(url: str, home: Path, *words: str) -> set[str]:
    command = [sys.executable, "-I", "-X", "importtime", *words]
    environ = {"HOME": str(home), "PATH": "/usr/bin:/bin", "CRONLOCK_BACKEND": url}
    done = subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    lines = done.stderr.splitlines()
    assert [line for line in lines if not line.startswith("import time:")] == [], done.stderr
    return {line.rpartition("|")[2].strip() for line in lines}


def imported(url: str, home: Path) -> tuple[set[str], set[str]]:
    """By a run: modules of ours, and all others; without what this interpreter needs itself, which some of `OTHERS` are."""
    names = loaded(url, home, *MAIN, "j", "true")
    ours = {name for name in names if name.split(".")[0] == "cronlock"}
    return ours, {name.split(".")[0] for name in names - ours} - loaded(url, home, "-c", "pass")


def expected(url: str, home: Path) -> tuple[set[str], set[str]]:
    ours, others = BESIDES[url.partition(":")[0]]
    there = loaded(url, home, "-c", "pass")
    return {"cronlock", *(f"cronlock.{name}" for name in f"{OURS} {ours}".split())}, {*OTHERS.split(), *others.split()} - there


def test_a_plain_run_imports_this_and_no_more(store: str, tmp_path: Path) -> None:
    imported(store, tmp_path)  # from now on there is a state to be read
    assert imported(store, tmp_path) == expected(store, tmp_path)


def test_a_skipped_run_imports_nothing_else(store: str, start: Callable[..., Started], tmp_path: Path) -> None:
    holder = start("j", "sh", "-c", "touch $T/held; sleep 60", backend=store)
    until((tmp_path / "held").exists)
    (ours, others), (known, theirs) = imported(store, tmp_path), expected(store, tmp_path)
    assert ours <= known
    assert others <= theirs | LATELY
    assert holder.poll() is None
