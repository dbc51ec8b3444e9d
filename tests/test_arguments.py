"""The small parser finds what click finds, on everything a command line may hold."""

from __future__ import annotations

import io
import os
import subprocess
from contextlib import redirect_stdout

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cronlock import manual
from cronlock.arguments import plain, understand
from cronlock.config import settle
from cronlock.errors import CronlockError
from cronlock.options import OPTIONS
from shell import cronlock

ENVIRON = {"PATH": "/bin", "XDG_CONFIG_HOME": "/nonexistent"}
VALUES = st.sampled_from(
    ["5m", "90", "inf", "0", "255", "256", "64k", "fail", "run", "json", "text", "", "-", "--", "-n", "=", "a=b", "flock:", "x y", "é"]
)
WORDS = st.sampled_from(["name", "-", "--", "-x", "--once-per", "-c", "echo", "", "a=b"])


@st.composite
def an_option(draw):
    option = draw(st.sampled_from(OPTIONS))
    names = [f"-{letter}" for letter in option.letters] + [f"--{name}" for name in (option.name, *option.aliases)]
    name, value = draw(st.sampled_from(names)), draw(VALUES)
    form = draw(st.sampled_from(["apart", "glued", "alone", "behind flags", "misspelt"]))
    if form == "alone" or (option.kind == "flag" and form == "apart"):
        return [name]
    if form == "apart":
        return [name, value]
    if form == "glued":
        return [f"{name}={value}" if name.startswith("--") else name + value]
    if form == "behind flags":
        return ["-" + draw(st.sampled_from(["n", "vn", "xo", "q"])) + name.lstrip("-")[0] + draw(st.sampled_from(["", value]))]
    return [name + draw(st.sampled_from(["x", "-", "s"]))]


ARGV = st.builds(
    lambda options, words: [w for one in options for w in one] + words, st.lists(an_option(), max_size=5), st.lists(WORDS, max_size=5)
)


def outcome(parse, argv):
    try:
        with redirect_stdout(io.StringIO()):  # --help
            return parse(argv)
    except CronlockError as error:
        return str(error)


@given(ARGV)
def test_as_click_reads_it(argv):
    small, clicks = outcome(plain, argv), outcome(manual.parse, argv)
    if small is not None:
        assert small == clicks
    else:
        assert clicks is None or isinstance(clicks, str), "what click reads without help or an error, the small parser reads too"


@given(ARGV)
def test_the_same_job(argv):
    def job(parse):
        found = parse(argv)
        if found is None:
            return None
        options, words = found
        values, _ = settle(options, words[0] if words else "", ENVIRON)
        made, url = understand(values, words, ENVIRON)
        return made.but(period_end=0.0, label=""), url  # the clock goes on between the two

    small = outcome(lambda _: job(plain), argv)
    if small is not None:
        assert small == outcome(lambda _: job(manual.parse), argv)


@pytest.mark.parametrize(
    ("argv", "options", "words"),
    [
        (["-nt5m", "job", "-n"], {"nonblock": True, "ttl": 300.0}, ["job", "-n"]),
        (["--prefer", "a", "--prefer=b", "--", "-job", "--", "x"], {"prefer": ("a", "b")}, ["-job", "--", "x"]),
        (["-E", "0", "-w", "inf", "-c", "a && b", "job"], {"conflict_exit_code": 0, "wait": float("inf"), "command": "a && b"}, ["job"]),
        (["--timeout", "5", "-", "true"], {"wait": 5.0}, ["-", "true"]),
        (["--backend=redis://h/0?a=b", "job", "true"], {"backend": "redis://h/0?a=b"}, ["job", "true"]),
    ],
)
def test_by_example(argv, options, words):
    assert plain(argv) == (options, words) == manual.parse(argv)


@pytest.mark.parametrize(
    "argv", [["--help"], ["-vh"], ["-V"], ["--nope", "job", "true"], ["-n=1", "job", "true"], ["--nonblock=1", "job"], ["-t"]]
)
def test_what_is_left_to_click(argv):
    assert plain(argv) is None


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_an_answer_that_nobody_takes(option):
    gone, pipe = os.pipe()
    os.close(gone)
    with open("/dev/full", "wb") as full, open(pipe, "wb") as unread:
        to_full, to_nobody = (subprocess.run([cronlock(), option], stdout=to, stderr=subprocess.PIPE, text=True) for to in (full, unread))
    assert (to_full.returncode, to_full.stderr) == (69, "cronlock: can't write the answer: No space left on device\n")
    assert (to_nobody.returncode, to_nobody.stderr) == (0, "")


@pytest.mark.parametrize("letter", ["\n", "\x1f", "\x7f", "\x85", "\x9b"])
def test_a_name_with_a_control_character(finish, letter):
    status, _, err = finish(f"a{letter}31m", "true")
    assert status == 64 and err.startswith("cronlock: the lock NAME 'a\\") and "control character" in err


def test_an_option_behind_the_name_is_the_commands_name(finish, tmp_path):
    """As with flock, env or nice; who finds no such program hears why it was looked for."""
    status, _, err = finish("job", "-w", "3", "true", backend=f"flock://{tmp_path}/locks")
    assert (status, err) == (127, "cronlock: -w: command not found: options stand before the lock's NAME\n")
