"""cronlockctl's words: the small parser finds what click finds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cronlock.ctl import VERBS, manual, read
from cronlock.errors import UsageError

WORDS = st.sampled_from(
    [
        "-b",
        "flock:",
        "--config",
        "--config=/x",
        "-bflock:",
        "--json",
        "--max-age",
        "5h",
        "--max-age=1d",
        "-y",
        "--yes",
        "a",
        "b c",
        "--",
        "-q",
    ]
)


def by_click(argv, monkeypatch):
    """What it calls, or None when it has something to say."""
    called = []
    with monkeypatch.context() as patched:
        patched.setattr(manual, "call", lambda *found: called.append(found) or 0)
        patched.setattr(manual.observers, "say", lambda *_: None)
        try:
            manual.answer(argv)
        except UsageError as error:
            return str(error)
    verb, where, name, options = called[0] if called else (None, {}, "", {})
    return verb and (verb, where, name, {key: value for key, value in options.items() if value})


@given(st.lists(WORDS, max_size=2), st.sampled_from([*VERBS, "nope"]), st.lists(WORDS, max_size=4))
def test_as_click_reads_it(before, verb, after):
    argv = [*before, verb, *after]
    try:
        small = read(argv)
    except UsageError as error:
        small = str(error)
    with pytest.MonkeyPatch.context() as monkeypatch:
        clicks = by_click(argv, monkeypatch)
    if small is not None and not isinstance(small, str):
        assert small == clicks
    elif small is None and "--" not in argv:
        assert clicks is None or isinstance(clicks, str)


@pytest.mark.parametrize(
    ("argv", "name", "options"),
    [
        (["status"], "", {}),
        (["status", "--json", "job"], "job", {"json": True}),
        (["status", "job", "--max-age=26h", "--json"], "job", {"json": True, "max_age": 93600.0}),
        (["-b", "flock:", "release", "job", "-y"], "job", {"yes": True}),
        (["metrics"], "", {}),
    ],
)
def test_by_example(argv, name, options, monkeypatch):
    found = read(argv)
    assert found[2:] == (name, options)
    assert found == by_click(argv, monkeypatch)


@pytest.mark.parametrize(
    "argv", [[], ["-h"], ["nope"], ["history"], ["history", "a", "b"], ["metrics", "a"], ["status", "--yes"], ["status", "--help"]]
)
def test_what_is_left_to_click(argv):
    assert read(argv) is None


@pytest.mark.parametrize("name", ["", "a\nb", "n" * 201])
def test_a_name_that_cronlock_would_not_take(name, monkeypatch):
    """As "$JOB" in a script where it is not set: `status ""` is not `status`."""
    with pytest.raises(UsageError, match="the lock NAME"):
        read(["status", name])
    assert "the lock NAME" in by_click(["status", "--", name], monkeypatch)
