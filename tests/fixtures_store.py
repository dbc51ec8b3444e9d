"""`store`: a fresh backend URL of each kind. `start`, `finish`: the installed command, as cron starts it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

CRONLOCK = str(Path(sys.executable).with_name("cronlock"))


@pytest.fixture(params=["flock", "postgresql", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"flock://{tmp_path}/locks" if request.param == "flock" else str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture(params=["postgresql", "redis"])
def leased(request: pytest.FixtureRequest) -> str:
    """A store whose lock runs out by a ttl."""
    return str(request.getfixturevalue(f"{request.param}_url"))


class Started(subprocess.Popen[str]):
    def end(self, seconds: float = 30) -> tuple[int, str, str]:
        out, err = self.communicate(timeout=seconds)
        return self.returncode, out, err

    @property
    def guard(self) -> int:
        """The guard's pid, once it is there."""
        return int(until(lambda: _children(self.pid))[0])


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    """start(*argv, backend=…, env=…, **popen): a running cronlock; whatever it leaves is killed afterwards."""
    running: list[Started] = []

    def go(*argv: str, backend: str = "", env: dict[str, str] | None = None, **popen: Any) -> Started:
        environ = {k: v for k, v in os.environ.items() if not k.startswith("CRONLOCK_")}
        environ |= {"HOME": str(tmp_path), "T": str(tmp_path)} | ({"CRONLOCK_BACKEND": backend} if backend else {}) | (env or {})
        options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        running.append(Started([CRONLOCK, *argv], env=environ, start_new_session=True, **{**options, **popen}))
        return running[-1]

    yield go
    for process in running:
        for pid in _tree(process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
                os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait(10)
        for stream in (process.stdout, process.stderr):
            if stream:
                stream.close()


@pytest.fixture
def finish(start: Callable[..., Started]) -> Callable[..., tuple[int, str, str]]:
    """finish(*argv, …): its exit status, stdout and stderr."""
    return lambda *argv, **kw: start(*argv, **kw).end()


class Listener:
    """A server at 127.0.0.1:port. Each connection goes to `talk`, in a thread of its own."""

    def __init__(self, talk: Callable[[socket.socket], object]) -> None:
        self._talk = talk
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=200)
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(client,), daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def until(what: Callable[[], Any], seconds: float = 20.0) -> Any:
    """The first true answer; never a fixed sleep for a state."""
    end = time.monotonic() + seconds
    while not (answer := what()):
        assert time.monotonic() < end, "still not so"
        time.sleep(0.01)
    return answer


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _children(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []


def _tree(pid: int) -> list[int]:
    return [pid, *(p for child in _children(pid) for p in _tree(int(child)))]
