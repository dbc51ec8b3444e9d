"""Events: one vocabulary as text, JSON and syslog; contention word for word; what is overdue is said, and not too often."""

from __future__ import annotations

import getpass
import json
import os
import re
import socket
import subprocess
import sys
import time
import uuid
from contextlib import suppress

import pytest

from cronlock import clock
from cronlock.cli import PATIENCE
from cronlock.ctl.status import as_json, look
from cronlock.model import Event, Grant, Run
from cronlock.observers import EVENTS, LEVELS, Syslog
from cronlock.registry import open_backend
from cronlock.testing import soon
from fixtures_store import until
from pages import ROOT

HERE = os.uname().nodename
STAMP = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d{4}"


def a_run(*, ago, host="web1", label="", token=""):
    return Run(uuid.uuid4().hex[:8], token or uuid.uuid4().hex, host, 4711, "deploy", "dump.sh", time.time() - ago, label)


@pytest.fixture
def held(store):
    """held(ago=…, took=…): somebody holds `name` for so long already; five runs before it took `took` seconds each."""
    backend = open_backend(store)

    def hold(*, ago, took=None, name="job"):
        for i in range(5 if took else 0):
            lease = backend.try_acquire(Grant(name, a_run(ago=ago + 100 + i), 60.0), soon())
            lease.release(lease.run.but(outcome="ok", status=0, end=lease.run.start + took), soon())
        return backend.try_acquire(Grant(name, a_run(ago=ago), 60.0), soon())

    yield hold
    backend.close()


@pytest.fixture
def logs(tmp_path):
    """JSON lines of what `finish` printed."""

    def parse(err):
        return [json.loads(line) for line in err.splitlines()]

    return parse


def test_busy_word_for_word(held, finish, store):
    lease = held(ago=7, took=600)
    stamp = clock.stamp(lease.run.start)
    assert finish("job", "true", backend=store) == (75, "", "")
    status, _, err = finish("-v", "job", "true", backend=store)
    said = (
        f"cronlock: job: busy: held by web1, pid 4711, user deploy, command dump\\.sh, since {re.escape(stamp)} \\(\\d+s, usually 10m\\)\n"
    )
    assert status == 75 and re.fullmatch(said, err), err


def test_a_holder_whose_clock_is_ahead_has_run_for_no_time_yet(held, finish, store):
    held(ago=-600, took=60)
    status, _, err = finish("-v", "job", "true", backend=store)
    assert status == 75 and err.endswith(" (0s, usually 1m)\n"), err


def test_a_signal_without_a_name_is_its_number(finish):
    assert finish("job", "sh", "-c", "kill -40 $$")[2].startswith("cronlock: job: the command was killed by signal 40; ")


def test_done_word_for_word(finish, store):
    finish("--once-per", "1d", "job", "true", backend=store)
    assert finish("--once-per", "1d", "job", "true", backend=store) == (75, "", "")
    status, _, err = finish("-v", "--once-per", "1d", "job", "true", backend=store)
    said = (
        rf"cronlock: job: done: this period \(1d/\S+\) was run on {HERE}, pid \d+, from {STAMP}; it ended ok at {STAMP} after 0s, "
        r"usually \S+s; run without --once-per to run it anyway"
    )
    assert status == 75 and re.fullmatch(said + "\n", err), err


def test_min_hold_word_for_word(finish, store):
    finish("--min-hold", "1m", "job", "true", backend=store)
    status, _, err = finish("-v", "job", "true", backend=store)
    said = rf"cronlock: job: busy: kept by --min-hold for another [\dms.]+; last run on {HERE}, pid \d+, started {STAMP}\n"
    assert status == 75 and re.fullmatch(said, err), err


def test_an_overdue_holder_is_a_warning_once_an_hour(held, finish, store):
    name = f"job-{uuid.uuid4()}"  # the hour outlasts this test, and so does its mark in the host's own directory
    held(ago=400, took=100, name=name)
    status, _, err = finish(name, "true", backend=store)
    assert status == 75
    said = rf"cronlock: {name}: busy: OVERDUE, held by web1, pid 4711, .* \(6m4\ds, usually 1m40s\); cronlockctl release stops it\n"
    assert re.fullmatch(said, err), err
    assert finish(name, "true", backend=store) == (75, "", "")


def test_an_overdue_holder_is_so_between_the_warnings_too(held, finish, logs, store):
    """Programs are told what it is; once an hour is for mails."""
    name = f"job-{uuid.uuid4()}"
    held(ago=400, took=100, name=name)
    for level in ("warning", "contention"):
        (event,) = logs(finish("--log-format", "json", name, "true", backend=store)[2])
        assert (event["level"], event["overdue"]) == (level, True)
        assert event["message"].startswith("busy: OVERDUE, ")


def test_an_overdue_holder_and_quiet(held, finish, store):
    held(ago=400, took=100)
    assert finish("-q", "job", "true", backend=store) == (75, "", "")


def test_a_holder_that_takes_its_usual_time_is_not(held, finish, store):
    held(ago=290, took=100)
    assert finish("job", "true", backend=store) == (75, "", "")


def test_without_a_history_nothing_is_overdue(held, finish, store):
    held(ago=4000)
    assert finish("job", "true", backend=store) == (75, "", "")


def test_warn_after(finish, store):
    status, _, err = finish("--warn-after", "0.2s", "job", "sleep", "0.8", backend=store)
    assert status == 0 and re.fullmatch(r"cronlock: job: still running after 0\.\ds\n", err), err


@pytest.mark.parametrize("store", ["redis"], indirect=True)
def test_warn_after_what_is_usual_or_never(held, start, store):
    lease = held(ago=100, took=1)
    lease.release(lease.run.but(outcome="lost", status=76, end=time.time()), soon())
    never = start("--warn-after", "0", "other", "sleep", "6", backend=store)
    usual = start("job", "sleep", "6", backend=store)
    assert usual.end() == (0, "", "cronlock: job: still running after 5s, usually 1s (--warn-after)\n")
    assert never.end() == (0, "", "")


def test_waiting_word_for_word(start, store, tmp_path):
    holder = start("job", "sh", "-c", ": >$T/in; until [ -e $T/go ]; do sleep .02; done", backend=store)
    until((tmp_path / "in").exists)
    with (tmp_path / "err").open("w") as err:
        patient = start("-v", "-w", "1h", "job", "true", backend=store, stderr=err)
    said = rf"cronlock: job: waiting up to (1h|59m59s|59m): held by {HERE}, pid \d+, user \S+, command sh, since {STAMP} \([\dms.]+\)\n"
    until(lambda: re.fullmatch(said, (tmp_path / "err").read_text()))
    silent = start("-w", "1h", "job", "true", backend=store)
    (tmp_path / "go").touch()
    assert (holder.end(), silent.end()) == ((0, "", ""), (0, "", ""))
    assert patient.wait(20) == 0
    assert (tmp_path / "err").read_text().count("waiting") == 1


def test_json_is_one_object_a_line(finish, logs, store):
    status, out, err = finish("--log-format", "json", "job", "sh", "-c", "echo out; exit 3", backend=store)
    events = logs(err)
    assert (status, out) == (3, "out\n")
    assert [event["event"] for event in events] == ["acquired", "started", "ended", "failed"]
    page = (ROOT / "docs/events.md").read_text()
    for event in events:
        assert event["v"] == 1 and event["name"] == "job" and event["host"] == HERE
        assert event["event"] in EVENTS and event["level"] in LEVELS
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", event["time"])
        for key in event:
            assert f"`{key}`" in page, key
    assert events[-1]["status"] == 3 and not any("status" in event for event in events[:-1])


def test_json_of_a_skipped_start(held, finish, logs, store):
    lease = held(ago=50, took=600)
    (event,) = logs(finish("--log-format", "json", "-E", "0", "job", "true", backend=store)[2])
    assert (event["event"], event["level"], event["status"], event["overdue"]) == ("busy", "contention", 0, False)
    assert (event["holder"]["host"], event["holder"]["pid"], round(event["holder"]["start"])) == ("web1", 4711, round(lease.run.start))
    assert event["usual"] == {"median": 600.0, "p95": 600.0, "runs": 5} and 50 <= event["held_for"] < 110
    assert lease.run.token not in json.dumps(event)
    backend = open_backend(store)
    (lock,) = as_json(backend, [look(backend, "job")])["locks"]
    backend.close()
    assert event["holder"] == lock["holder"] and event["holder"]["outcome"] is None  # one schema of a run, whoever prints it
    for key in event:
        assert f"`{key}`" in (ROOT / "docs/events.md").read_text(), key


def test_json_of_heartbeats(finish, logs, monitor):
    heartbeat = ("--heartbeat", monitor.url, "--heartbeat", "http://127.0.0.1:1", "--heartbeat-timeout", "1s")
    events = logs(finish("--log-format", "json", *heartbeat, "job", "true")[2])
    assert [event["event"] for event in events] == ["acquired", "started", "ended", "heartbeat", "heartbeat-lost", "ok"]
    assert [event["event"] for event in events if "status" in event] == ["ok"]
    for key in set().union(*events):
        assert f"`{key}`" in (ROOT / "docs/events.md").read_text(), key


def test_json_of_an_error(finish, logs):
    (event,) = logs(finish("--log-format", "json", "job", "true", backend="redis://127.0.0.1:1")[2])
    assert (event["event"], event["level"], event["status"]) == ("unavailable", "trouble", 69)
    events = logs(finish("--log-format", "json", "job", "no-such-program")[2])
    assert (events[-1]["event"], events[-1]["status"]) == ("failed", 127)


@pytest.mark.parametrize(
    ("argv", "env"),
    [
        (["--log-format", "json", "--no-such", "job", "true"], {}),
        (["-t", "soon", "--log-format=json", "job", "true"], {}),
        (["-t", "soon", "job", "true"], {"CRONLOCK_LOG_FORMAT": "json"}),
    ],
)
def test_json_of_a_wrong_option(finish, logs, argv, env):
    status, _, err = finish(*argv, env=env)
    (event,) = logs(err)
    assert (status, event["event"], event["level"], event["status"]) == (64, "error", "trouble", 64)


def test_json_and_quiet(finish, store):
    assert finish("--log-format", "json", "-q", "job", "true", backend=store) == (0, "", "")


def test_a_missing_syslog_is_said_once(finish, store):
    if os.path.exists("/dev/log"):
        pytest.skip("something listens at /dev/log here")
    status, _, err = finish("--syslog", "job", "true", backend=store)
    assert (status, err) == (0, "cronlock: job: --syslog: /dev/log: No such file or directory: nothing is logged there\n")
    assert finish("--syslog", "-q", "job", "true", backend=store) == (0, "", "")


def test_a_skipped_start_has_no_doubts(held, finish, store):
    """N-1 servers would mail them each tick."""
    held(ago=7)
    assert finish("job", "-c", "true &", backend=store) == (75, "", "")
    assert "background" in finish("other", "-c", "true &", backend=store)[2]


def test_syslog_identifier_and_priorities(tmp_path):
    complaints = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.bind(str(tmp_path / "log"))
        log.settimeout(10)
        syslog = Syslog("job", complaints.append, str(tmp_path / "log"))
        for level, priority in (("trouble", 75), ("warning", 76), ("contention", 78), ("info", 78)):
            syslog(Event("ok", level, "some\nthing " + "x" * 3000))
            line = log.recv(65536).decode()
            assert re.match(rf"<{priority}>[A-Z][a-z]{{2}} [ \d]\d \d\d:\d\d:\d\d cronlock\[{os.getpid()}\]: job: some\?thing x", line)
            assert len(line) < 2000
    assert complaints == []
    for _ in range(3):
        syslog(Event("ok", "info", "nobody listens"))
    assert len(complaints) == 1
    syslog.close()


def test_a_syslog_that_was_started_anew_hears_the_next_event(tmp_path):
    complaints, path = [], tmp_path / "log"
    syslog = Syslog("job", complaints.append, str(path))
    for text in ("before", "after"):
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
            log.bind(str(path))
            log.settimeout(10)
            syslog(Event("ok", "info", text))
            assert log.recv(65536).decode().endswith(text)
    assert complaints == []
    syslog.close()


def test_a_stuck_syslog_keeps_nobody(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.bind(str(tmp_path / "log"))
        syslog = Syslog("job", lambda text: None, str(tmp_path / "log"))
        began = time.monotonic()
        for _ in range(2000):  # far more than the socket's queue holds
            syslog(Event("ok", "info", "x" * 500))
        assert time.monotonic() - began < 10
        syslog.close()


def test_syslog_through_the_command_line(sys_log, finish):
    status, _, err = finish("--syslog", "job", "sh", "-c", "exit 3")
    assert (status, err) == (3, "")
    lines = sys_log()
    assert [re.sub(r"^<(\d+)>.{15} cronlock\[\d+\]: job: ", r"\1 ", line) for line in lines][-1] == "78 failed with status 3"
    assert finish("--syslog", "--config", "/nosuch", "job", "true")[0] == 78  # where stderr goes nowhere, nothing else tells
    (line,) = sys_log()
    assert re.fullmatch(r"<75>.{15} cronlock\[\d+\]: the config /nosuch: No such file or directory", line)


@pytest.fixture
def sys_log():
    """Somebody who listens at /dev/log, if nobody does and we may."""
    if os.geteuid() != 0 or os.path.lexists("/dev/log"):
        pytest.skip("needs root, and nobody at /dev/log")
    log = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    log.bind("/dev/log")
    log.settimeout(0.2)

    def lines():
        found = []
        while True:
            try:
                line = log.recv(65536).decode()
                if "cronlock[" in line:  # cron of another test writes here too
                    found.append(line)
            except TimeoutError:
                return found

    yield lines
    log.close()
    os.unlink("/dev/log")


def test_contention_is_said_on_a_terminal(held, start, store):
    import pty

    held(ago=7)
    ours, theirs = pty.openpty()
    process = start("job", "true", backend=store, stderr=theirs)
    os.close(theirs)
    assert process.wait(30) == 75
    assert b"busy: held by web1, pid 4711" in os.read(ours, 65536)
    os.close(ours)


def test_what_is_usual_costs_a_winner_and_a_quiet_loser_nothing(held, store, tmp_path):
    """The history is read by nobody who does not need it: a winner of a short run, a loser that nobody hears."""
    script = f"""
import sys
from cronlock import cli, registry
backend = registry.open_backend({store!r})
def never(*_): raise AssertionError("the history was read")
type(backend).history = never
sys.exit(cli.start(["job", "true"], {{"CRONLOCK_BACKEND": {store!r}, "PATH": "/bin:/usr/bin", "HOME": {str(tmp_path)!r}}}))
"""
    run = lambda: subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)  # noqa: E731
    won = run()
    assert (won.returncode, won.stderr) == (0, "")
    held(ago=1)
    lost = run()
    assert (lost.returncode, lost.stderr) == (75, "")


def test_what_is_usual_and_cannot_be_read_changes_nothing(held, finish, store):
    held(ago=1)
    script = """
import os, sys
from cronlock import cli, errors, registry
def away(*_): raise errors.BackendError("away")
type(registry.open_backend(os.environ["CRONLOCK_BACKEND"])).history = away
sys.exit(cli.start(["-v", "job", "true"], dict(os.environ)))
"""
    lost = subprocess.run([sys.executable, "-c", script], env={**os.environ, "CRONLOCK_BACKEND": store}, capture_output=True, text=True)
    assert lost.returncode == 75 and "busy: held by web1" in lost.stderr


def test_who_runs_the_tests_is_who_is_shown(start, finish, store, tmp_path):
    process = start("job", "sh", "-c", f"touch {tmp_path}/in; sleep 30", backend=store)
    until((tmp_path / "in").exists)
    err = finish("-v", "job", "true", backend=store)[2]
    assert f"held by {HERE}, pid {process.pid}, user {getpass.getuser()}, command sh, since " in err


def test_a_reader_of_stderr_that_hangs_keeps_no_lock(start, finish, tmp_path, store):
    """^S on a terminal, a pager: what there is to say on the way is left out then; the lock is renewed, and let go as the command ends."""
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writes, b"x" * 4096)
    os.set_blocking(writes, True)
    job = start("-v", "-t", "2", "job", "sh", "-c", "sleep 3; echo > $T/ran", backend=store, stderr=writes)
    os.close(writes)
    until((tmp_path / "ran").exists)
    assert finish("-w", "10", "job", "true", backend=store) == (0, "", "")
    patient = time.monotonic() + 2 * PATIENCE
    until(lambda: time.monotonic() > patient)
    assert job.poll() is None  # its last words wait for the reader
    with open(reads, "rb") as stderr:
        said = stderr.read()
    assert said.endswith(b"cronlock: job: ok\n")
    assert job.wait(10) == 0
