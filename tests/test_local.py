"""Marks of what was said already: kept for an hour or so, never piled up."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from cronlock import local


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(local, "default_directory", lambda: str(tmp_path / "state"))
    return tmp_path / "state"


def test_a_mark_is_seen_for_its_time(home: Path) -> None:
    assert not local.lately("overdue x", 3600)
    assert local.mark("overdue x")
    assert local.lately("overdue x", 3600)
    assert not local.lately("overdue y", 3600)
    (path,) = home.iterdir()
    os.utime(path, (0, time.time() - 3601))
    assert not local.lately("overdue x", 3600)


def test_old_marks_go_with_the_next_one_and_nothing_else_does(home: Path) -> None:
    """A lock may be called like a mark."""
    home.mkdir()
    names = ("said-0123456789abcdef", "said-x.lock", "said-x.runs", "job.lock", "said-fresh")
    for name in names:
        (home / name).touch()
        os.utime(home / name, (0, time.time() - (86000 if name == "said-fresh" else 90000)))
    assert local.mark("overdue x")
    left = {path.name for path in home.iterdir()}
    assert left >= {*names[1:]} and "said-0123456789abcdef" not in left and len(left) == 5


def test_what_can_not_be_marked_is_not_said(home: Path) -> None:
    home.touch()
    assert not local.mark("overdue x")
