"""What tests/chaos found, each as a case of its own.

The guard's own cases run in a process of their own: its parent reaps and kills whatever descends from it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cronlock import clock
from cronlock import run as run_module
from cronlock.errors import BackendError
from cronlock.model import Busy, Grant, Job
from cronlock.signals import Signals
from fixtures_redis import RedisServer
from fixtures_store import Started, alive, until

GUARD = """
import os, signal, sys, time
from cronlock import guard

def start(script):
    return guard.Guard.start(guard.Orders(("/bin/sh", "-c", script), dict(os.environ), set(), (), 1.0, guard.FOREVER))

def until(what, seconds=10.0):
    end = time.monotonic() + seconds
    while not (answer := what()):
        assert time.monotonic() < end, said
        time.sleep(0.01)
    return answer

def state(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]

def hear(keeper, word):
    said.extend(keeper.messages())
    return any(text.split()[0] == word for text in said)

said = []
"""


def with_guard(script: str) -> list[str]:
    """What was said to cronlock, a message a line."""
    done = subprocess.run([sys.executable, "-c", GUARD + script + "\nprint(*said, sep='\\n')"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_stop_after_the_command_has_ended_by_itself_is_over() -> None:
    """The store is away, and the command ends while the last try to renew still waits: cronlock then told a guard that had
    left to stop the tree, and waited for ever for its answer."""
    said = with_guard(
        """
keeper = start("exit 7")
until(lambda: state(keeper.pid) == "Z")
keeper.stop(1.0)
until(lambda: hear(keeper, "gone"))
"""
    )
    assert said[1:] == [f"ended {7 << 8}", "gone"]


def test_the_same_when_the_end_was_already_heard() -> None:
    """And the status is the command's own, not one made up for a command that nobody can find any more."""
    said = with_guard(
        """
keeper = start("exit 7")
until(lambda: hear(keeper, "ended"))
keeper.stop(1.0)
until(lambda: hear(keeper, "gone"))
"""
    )
    assert [text for text in said if text != "gone"][1:] == [f"ended {7 << 8}"]


@pytest.mark.parametrize("heard", [True, False])
def test_a_guard_killed_while_it_stops_what_the_command_left(heard: bool, tmp_path: Path) -> None:
    """It has reported the command's end, not that of a helper which ignores TERM: that one is still to be stopped."""
    up = tmp_path / "up"
    helper = tmp_path / "helper"
    helper.write_text(f"trap '' TERM\ntouch {up}\nsleep 60\n")
    said = with_guard(
        f"""
keeper = start("trap 'exit 7' TERM; setsid sh {helper} & wait; wait")
until(lambda: hear(keeper, "started") and os.path.exists("{up}"))
command = int(said[0].split()[1])
keeper.stop(1.0)
until(lambda: not os.path.exists(f"/proc/{{command}}"))  # the guard has reaped it
if {heard}:
    until(lambda: hear(keeper, "ended"))
os.kill(keeper.pid, signal.SIGKILL)
until(lambda: hear(keeper, "gone"))
try:
    os.waitpid(-1, os.WNOHANG)
    said.append("somebody is left")
except ChildProcessError:
    pass
"""
    )
    assert [text for text in said if text.startswith("ended")] == [f"ended {7 << 8}"]
    assert "somebody is left" not in said


class Flaky:
    """Busy, then no answer, then a grant: which may be that of the try that got no answer."""

    where, timeout = "flaky:", 1.0

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.warnings: list[str] = []

    def try_acquire(self, grant: Grant, until: float) -> object:
        self.asked.append(clock.now())
        if len(self.asked) == 1:
            return Busy()
        if len(self.asked) == 2:
            raise BackendError("no answer")
        return "a lease"

    def abandon(self, grant: Grant, until: float) -> None:
        pass

    def wait(self, name: str, until: float) -> None:
        pass


def test_validity_counts_from_the_first_try_that_was_not_answered() -> None:
    """The store may have granted it then, and the lease runs since; the later try only hears of it (docs/model: COUNT_FROM_LAST_TRY)."""
    backend = Flaky()
    job = Job("job", ("true",), wait=5.0)
    grant = Grant("job", run_module.new_run(job), 3.0, 0.0, False)
    answer, asked = run_module.acquire(job, grant, backend, Signals(), lambda _: None)
    assert answer == "a lease"
    assert backend.asked[1] - 0.1 <= asked <= backend.asked[1] < backend.asked[2]


def test_a_frozen_guard_and_a_silent_store(own_redis: RedisServer, start: Callable[..., Started], tmp_path: Path) -> None:
    """The command is gone before the lease is, even if its guard is frozen and cronlock was waiting between two tries."""
    script = "trap '' TERM; echo $$ >$T/pid.new; mv $T/pid.new $T/pid; while :; do sleep 0.01; done"
    running = start("--ttl", "3s", "job", "sh", "-c", script, backend=own_redis.url())
    until((tmp_path / "pid").exists)
    command = int((tmp_path / "pid").read_text())
    os.kill(running.guard, signal.SIGSTOP)
    asked = time.monotonic()
    os.kill(own_redis.pid, signal.SIGSTOP)
    until(lambda: not alive(command))
    assert time.monotonic() - asked < 3.0
    os.kill(own_redis.pid, signal.SIGCONT)
    assert running.end()[0] == 76


def test_that_it_is_being_stopped_is_said_before_that_it_has_ended(tmp_path: Path) -> None:
    """A frozen guard was told of a TERM and then killed; on a busy machine the command was dead before cronlock, which had taken
    it over, had said that it is stopping the tree: so the lock was released, and a helper that ignores TERM acted on beside
    the next run."""
    up = tmp_path / "up"
    helper = tmp_path / "helper"
    helper.write_text(f"trap '' TERM\ntouch {up}\nsleep 60\n")
    said = with_guard(
        f"""
keeper = start("trap 'exit 7' TERM; setsid sh {helper} & wait; wait")
until(lambda: hear(keeper, "started") and os.path.exists("{up}"))
os.kill(keeper.pid, signal.SIGSTOP)
keeper.pass_on(signal.SIGTERM)
looked = guard.tree.descendants
guard.tree.descendants = lambda root: time.sleep(0.3) or looked(root)
keeper.kill()
until(lambda: hear(keeper, "gone"))
"""
    )
    assert said[1:] == ["stopping signal", f"ended {7 << 8}", "gone"]
