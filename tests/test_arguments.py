"""The small parser finds what click finds, on everything a command line may hold."""

from __future__ import annotations

import io
import os
import subprocess
import time
from contextlib import redirect_stdout

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cronlock import clock, manual
from cronlock.arguments import plain, understand
from cronlock.config import settle
from cronlock.errors import CronlockError, UsageError
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


@pytest.mark.parametrize("program", ["cronlock", "cronlockctl"])
@pytest.mark.parametrize("option", ["--help", "--version"])
def test_an_answer_that_nobody_takes(program, option):
    gone, pipe = os.pipe()
    os.close(gone)
    asked = [cronlock().with_name(program), option]
    with open("/dev/full", "wb") as full, open(pipe, "wb") as unread:
        to_full, to_nobody = (subprocess.run(asked, stdout=to, stderr=subprocess.PIPE, text=True) for to in (full, unread))
    assert (to_full.returncode, to_full.stderr) == (69, f"{program}: can't write the answer: No space left on device\n")
    assert (to_nobody.returncode, to_nobody.stderr) == (0, "")


@pytest.mark.parametrize("letter", ["\n", "\x1f", "\x7f", "\x85", "\x9b"])
def test_a_name_with_a_control_character(finish, letter):
    status, _, err = finish(f"a{letter}31m", "true")
    assert status == 64 and err.startswith("cronlock: the lock NAME 'a\\") and "control character" in err


def understood(*argv, **environ):
    options, words = plain(argv)
    values, _ = settle(options, words[0] if words else "", ENVIRON | environ)
    return understand(values, words, ENVIRON | environ, options)[0]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "a lock NAME is missing"),
        (["", "true"], "the lock NAME is empty"),
        (["x" * 201, "true"], "has 201 characters"),
        (["a\nb", "true"], "contains a control character"),
        (["a\x7fb", "true"], "contains a control character"),
        (["job"], "no COMMAND after the lock name 'job'"),
        (["release"], "did you mean cronlockctl release?"),
        (["9"], "does not lock file descriptors"),
        (["job", ""], "the COMMAND is an empty word"),
        (["job", "-c"], "-c takes exactly one argument"),
        (["job", "--command", "a", "b"], "--command takes exactly one argument"),
        (["-c", "a", "job", "true"], "not both"),
        (["-c", "a", "job", "-c", "b"], "not both"),
        (["-n", "-w", "5", "job", "true"], "-n and -w contradict each other"),
        (["-v", "-q", "job", "true"], "-v and -q contradict each other"),
        (["-F", "-b", "redis://h", "job", "true"], "-F works with local file locks only"),
        (["-F", "-b", "nfs:///d", "job", "true"], "-F works with local file locks only"),
        *[(["-F", f"--{key}", "5s", "job", "true"], f"see to --{key}:") for key in ("max-runtime", "min-hold", "warn-after")],
        (["-F", "--heartbeat", "https://h/x", "job", "true"], "see to --heartbeat:"),
        (["-F", "--once-per", "5m", "job", "true"], "see to --once-per:"),
        (["-F", "--kill-after", "10s", "job", "true"], "see to --kill-after:"),
        (["-F", "--on-lost", "continue", "job", "true"], "see to --on-lost:"),
        (["--once-per", "1m", "--standby-delay", "5s", "job", "true"], "--standby-delay needs --prefer"),
        (["--retry-failed", "job", "true"], "--retry-failed needs --once-per"),
        (["--prefer", "web1", "job", "true"], "--prefer needs --once-per"),
        (["--once-per", "5m", "--jitter", "5m", "job", "true"], "--jitter 5m must be shorter than --once-per 5m"),
        (["--once-per", "1m", "--prefer", "a", "--standby-delay", "1m", "job", "true"], "--standby-delay 1m must be shorter"),
    ],
)
def test_what_is_not_understood_is_said(argv, said):
    with pytest.raises(UsageError) as error:
        understood(*argv)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (["job", "a", "-c", "b"], ("a", "-c", "b")),
        (["job", "--", "-c", "x"], ("-c", "x")),
        (["job", "--", "--", "x"], ("--", "x")),
        (["--", "job", "x", "--"], ("x", "--")),
        (["job", "-c", "a && b"], ("/bin/sh", "-c", "a && b")),
        (["job", "-c", ""], ("/bin/sh", "-c", "")),
        (["-c", "a", "job", "--"], ("/bin/sh", "-c", "a")),
        (["x" * 200, "true", ""], ("true", "")),
        (["-n", "-q", "job", "true"], ("true",)),
        (["-w", "5", "-v", "job", "true"], ("true",)),
        (["-F", "-b", "file:///d", "job", "true"], ("true",)),
    ],
)
def test_the_command_is_as_given(argv, command):
    assert understood(*argv).command == command


def test_the_callers_shell():
    assert understood("job", "-c", "a", SHELL="/bin/zsh").command[0] == "/bin/zsh"
    assert understood("job", "-c", "a", SHELL="").command[0] == "/bin/sh"


def test_those_that_are_not_preferred_hold_back():
    here = os.uname().nodename
    for preferred, delay in ((["web1"], 7.0), (["web1", here], 0.0), ([here.partition(".")[0]], 0.0), ([here + "x"], 7.0), ([], 0.0)):
        names = [word for host in preferred for word in ("--prefer", host)]
        assert understood("--once-per", "1m", *names, "job", "true", CRONLOCK_STANDBY_DELAY="7s").standby == delay, preferred


def test_what_could_do_nothing_may_be_a_default_of_many_lines():
    general = {"CRONLOCK_STANDBY_DELAY": "1m", "CRONLOCK_KILL_AFTER": "5s", "CRONLOCK_ON_LOST": "continue"}
    assert understood("--once-per", "1m", "job", "true", **general).standby == 0.0
    assert understood("-F", "job", "true", **general).no_fork
    assert not understood("job", "true", CRONLOCK_RETRY_FAILED="1", CRONLOCK_PREFER="web1").label  # only its neighbours have --once-per


@pytest.fixture
def berlin(monkeypatch):
    """The process's zone, and 21:30 there, on a Sunday."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    monkeypatch.setattr(clock, "wall", lambda: 1_795_984_200.0)  # 2026-11-29T20:30Z
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("environ", "label", "end"),
    [({}, "1d/2026-11-29", "2026-11-29T23:00Z"), ({"CRON_TZ": "Asia/Kolkata"}, "1d/2026-11-30", "2026-11-30T18:30Z")],
)
def test_a_day_is_crons(berlin, environ, label, end):
    """Its CRON_TZ, where it has one, else the process's zone."""
    job = understood("--once-per", "1d", "--retry-failed", "job", "true", **environ)
    assert (job.label, time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime(job.period_end)), job.retry_failed) == (label, end, True)


def test_an_option_behind_the_name_is_the_commands_name(finish, tmp_path):
    """As with flock, env or nice; who finds no such program hears why it was looked for."""
    status, _, err = finish("job", "-w", "3", "true", backend=f"flock://{tmp_path}/locks")
    assert (status, err) == (127, "cronlock: -w: command not found: options stand before the lock's NAME\n")
