"""Processes as cron starts them: timed, held at a gate, let go all at once."""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

CRON = {"HOME": "/nonexistent", "LOGNAME": "root", "PATH": "/usr/bin:/bin", "SHELL": "/bin/sh"}
PATIENCE = 600.0  # seconds for anything to happen at all


class Took(NamedTuple):
    wall: float
    cpu: float
    status: int


class Command(NamedTuple):
    argv: list[str]
    environ: dict[str, str]

    def start(self, *, stdin: int = -1, log: str = os.devnull) -> int:
        """Its pid. Nothing of ours is inherited."""
        first = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0) if stdin < 0 else (os.POSIX_SPAWN_DUP2, stdin, 0)
        rest = [(os.POSIX_SPAWN_OPEN, fd, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644) for fd in (1, 2)]
        return os.posix_spawn(self.argv[0], self.argv, CRON | self.environ, file_actions=[first, *rest])

    def time(self) -> Took:
        """CPU is that of the whole family, as far as it was waited for."""
        begin = time.perf_counter()
        _pid, status, usage = os.wait4(self.start(), 0)
        return Took(time.perf_counter() - begin, usage.ru_utime + usage.ru_stime, os.waitstatus_to_exitcode(status))

    def behind(self, gate: str) -> Command:
        """The same, after the shell has read to the end of its standard input."""
        return Command(["/bin/sh", "-c", 'read -r _; exec "$@" </dev/null', gate, *self.argv], self.environ)


class Gate:
    """`job` is a command that notes its pid and then lasts until open(), or until we are gone."""

    def __init__(self, directory: Path, name: str) -> None:
        self._ran, self._fifo = directory / f"{name}.ran", directory / f"{name}.gate"
        os.mkfifo(self._fifo)
        self._shut = os.open(self._fifo, os.O_RDWR)
        self.job = ("/bin/sh", "-c", f"exec 3<{self._fifo}; echo $$ >>{self._ran}; read -r _ <&3")

    def running(self) -> list[int]:
        return [int(line) for line in self._ran.read_text().split()] if self._ran.exists() else []

    @property
    def since(self) -> float:
        """When the last of them began, on time.time()'s clock."""
        return self._ran.stat().st_mtime

    def hold(self, commands: Sequence[Command]) -> list[int]:
        """Start them; their pids when the job of every one runs. RuntimeError if one ends instead."""
        log = f"{self._ran}.log"
        pids = [command.start(log=log) for command in commands]

        def all_run() -> bool:
            for pid in pids:
                if os.waitpid(pid, os.WNOHANG)[0]:
                    raise RuntimeError(f"one of {len(pids)} ended and should hold its lock: {Path(log).read_text()[:500]}")
            return len(self.running()) == len(pids)

        until("every lock is held", all_run)
        return pids

    def open(self) -> None:
        self._fifo.unlink()
        os.close(self._shut)


class Exit(NamedTuple):
    pid: int
    status: int
    at: float  # time.perf_counter()


class Watch:
    """Children whose ends are told one by one."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._selector = selectors.EpollSelector()
        for pid in pids:
            self._selector.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)

    def fileno(self) -> int:
        """Readable when there is one to be told."""
        return self._selector.fileno()

    def ended(self, seconds: float) -> list[Exit]:
        """Those that have ended since the last call, or within so many seconds."""
        found = []
        for key, _ in self._selector.select(seconds):
            self._selector.unregister(key.fd)
            os.close(key.fd)
            found.append(Exit(key.data, os.waitstatus_to_exitcode(os.waitpid(key.data, 0)[1]), time.perf_counter()))
        return found

    def finish(self) -> None:
        while self._selector.get_map():
            self.ended(PATIENCE)


def stat(pid: int) -> tuple[str, int]:
    """State and clock ticks used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return fields[0], int(fields[11]) + int(fields[12])


def family(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(member for child in children for member in family(int(child)))]


def until(what: str, seen: Callable[[], object]) -> None:
    """Poll `seen()`; TimeoutError that names it."""
    end = time.monotonic() + PATIENCE
    while not seen():
        if time.monotonic() > end:
            raise TimeoutError(f"never: {what}")
        time.sleep(0.01)


def settled(pid: int, seconds: float = 0.3) -> None:
    """Return when it has used no processor for so long: it waits."""
    used, since = -1, time.monotonic()
    while time.monotonic() < since + seconds:
        if (now := stat(pid)[1]) != used:
            used, since = now, time.monotonic()
        time.sleep(0.02)
