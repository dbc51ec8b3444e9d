"""Every descendant of a process: find, signal, confirm gone. Linux's /proc and subreaper are what make it possible.

A process that leaves its group (`timeout`, `setsid`, a double fork) still has a parent, and an orphan's new parent
is the nearest subreaper above it (prctl(2)): the guard. So whoever descends from the guard belongs to the job, and
when the guard has no child left at all, waitpid(2) says ECHILD and the tree is gone for certain.
"""

from __future__ import annotations

import os

from cronlock.lean import prctl, signal, suppress
from cronlock.model import Value

PR_SET_CHILD_SUBREAPER = 36


class Process(Value):
    pid: int
    parent: int
    group: int
    state: str
    started: int  # clock ticks since boot: tells a pid from its successor


def become_subreaper() -> None:
    """Orphaned descendants come to this process instead of init."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def look(pid: int | str) -> Process | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    fields = text[text.rindex(b")") + 2 :].split()  # the name before it may contain anything, blanks and ) too
    return Process(int(pid), int(fields[1]), int(fields[2]), fields[0].decode(), int(fields[19]))


def descendants(root: int) -> list[Process]:
    """All living ones, children before grandchildren; zombies are dead."""
    children: dict[int, list[Process]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (process := look(entry)):
            children.setdefault(process.parent, []).append(process)
    found, level = [], [root]
    while level:
        below = [p for parent in level for p in children.get(parent, ())]
        found += below
        level = [p.pid for p in below]
    return [p for p in found if p.state not in "ZX"]


def send(process: Process, signum: int) -> bool:
    """To exactly this process, not to one that got its number since. False: not ours to signal, or gone."""
    try:
        fd = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        now = look(process.pid)
        if now is None or now.started != process.started:
            return False
        signal.pidfd_send_signal(fd, signum)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


def send_group(group: int, signum: int) -> None:
    with suppress(OSError):
        os.killpg(group, signum)
