"""What tests/chaos found, each as a case of its own.

The guard's own cases run in a process of their own: its parent reaps and kills whatever descends from it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
