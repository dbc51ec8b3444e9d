"""Scripts as people write them, run by a real shell in a fresh directory; nothing of them is left behind.

    with Shell(backend="redis://127.0.0.1/0") as sh:
        done = sh.run("cronlock job -- true; echo rc=$?")
        assert done["rc"] == "0"

As root a script is process 1 of a PID namespace with a /var/lib of its own, so that whatever it starts ends with it
and root's default lock directory is not this machine's. Otherwise what carries the script's $T is killed after it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from time import monotonic
from typing import NamedTuple, Self

import pytest

import cronlock as cronlock_package
from fixtures_nfs import unusable

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
NOBODY = 65534

# await polls, and gives up loudly; timed says how a command ended and how long it took
PRELUDE = """
now() { date +%s%N; }
await() { _n=0; until "$@" >/dev/null; do _n=$((_n + 1)); [ $_n -lt 400 ] || { echo "never: $*" >&2; exit 99; }; sleep .05; done; }
timed() { _label=$1 _start=$(now); shift; "$@"; _status=$?; echo "$_label=$_status"; echo "$_label.ms=$((($(now) - _start) / 1000000))"; }
"""

# clients of the real servers, for scripts; $DIRECT is the store's URL
CLIENTS = {
    "redis-cli": """
import os, sys, redis
with redis.Redis.from_url(os.environ["DIRECT"].partition("?")[0], decode_responses=True) as client:
    answer = client.execute_command(*sys.argv[1:])
print(*answer if isinstance(answer, list) else [answer], sep="\\n")
""",
    "sql": """
import os, sys, psycopg
with psycopg.connect(os.environ["DIRECT"], autocommit=True, application_name="test") as connection:
    for row in connection.execute(sys.argv[1]):
        print(*row, sep="|")
""",
    # the memory, in kB, of the greediest process of a command: into the file named first
    "peak": """
import resource, subprocess, sys
status = subprocess.call(sys.argv[2:])
open(sys.argv[1], "w").write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
sys.exit(status)
""",
}


class Done(NamedTuple):
    """How a script ended. done["rc"] is what it said as `rc=…`, done.took("rc") the seconds of `timed rc COMMAND`."""

    status: int
    out: str
    err: str
    seconds: float

    def __getitem__(self, key: str) -> str:  # type: ignore[override]
        values = dict(line.partition("=")[::2] for line in self.out.splitlines() if "=" in line)
        assert key in values, f"the script never said {key}=…: {self}"
        return values[key]

    def took(self, label: str) -> float:
        return int(self[f"{label}.ms"]) / 1000


class Shell:
    def __init__(self, backend: str = "") -> None:
        self.home = Path(tempfile.mkdtemp(prefix="cl-sh-"))
        os.chmod(self.home, 0o755)  # nobody may come in
        self.T = self.home / "t"
        for directory in ("t", "bin", "home"):
            (self.home / directory).mkdir()
            os.chmod(self.home / directory, 0o777)
        for name, text in CLIENTS.items():
            self.program(name, f"#!{sys.executable}\n{text}")
        self.backend = backend or f"flock://{self.T}/locks"
        self.mark = str(int.from_bytes(os.urandom(5)))  # $M: sleep 298.$M is a process of this script's own
        self._runs = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for directory, _names, _files in os.walk(self.home):
            with contextlib.suppress(OSError):
                os.chmod(directory, 0o777)
        shutil.rmtree(self.home, ignore_errors=True)

    def program(self, name: str, text: str) -> Path:
        """An executable on the script's PATH; of an absolute `name`, there."""
        path = self.home / "bin" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
        return path

    @property
    def environment(self) -> dict[str, str]:
        """About what cron gives, and what the cases speak of."""
        return {
            "HOME": str(self.home / "home"),
            "SHELL": "/bin/sh",
            "PATH": f"{self.home / 'bin'}:{cronlock().parent}:{SYSTEM_PATH}",
            "T": str(self.T),
            "M": self.mark,
            "CRONLOCK_BACKEND": self.backend,
            "DIRECT": self.backend,
        }

    def run(self, script: str, *, shell: str = "/bin/sh", timeout: float = 60, nobody: bool | int = False, **variables: str) -> Done:
        """Run `script` in $T, stdin at its end. AssertionError after `timeout` seconds. `nobody`: not as root, or as which uid."""
        if ("pgrep" in script or "$(ps " in script) and not shutil.which("pgrep"):
            unusable("needs Debian's package procps")
        self._runs += 1
        case = self.home / f"case{self._runs}.sh"  # a file: with -c the text itself would be found by pgrep -f
        case.write_text(PRELUDE + script, errors="surrogateescape")
        argv = [shell, str(case)]
        if nobody and os.geteuid() == 0:
            uid = NOBODY if nobody is True else nobody
            argv = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *argv]
        if can_unshare():
            mounts = f"mount -t tmpfs tmpfs /var/lib; {_within_reach(self.home) if nobody else ''}"
            argv = [*UNSHARE, "sh", "-ec", f'{mounts} exec "$@"', "sh", *argv]
        # files: a pipe would stay open as long as any daemon has it
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            start = monotonic()
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=self.T,
                env={**self.environment, **variables},
                start_new_session=True,
            )
            try:
                status = process.wait(timeout)
            except subprocess.TimeoutExpired:
                status = None
            seconds = monotonic() - start
            self._kill_what_is_left(process)
            texts = []
            for stream in (out, err):
                stream.seek(0)
                texts.append(stream.read().decode(errors="backslashreplace"))
        done = Done(-1 if status is None else status, *texts, seconds)
        assert status is not None, f"still not over after {timeout:.0f} s: {done}"
        assert "never: " not in done.err, done
        return done

    def _kill_what_is_left(self, process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if can_unshare():
            return
        mark = f"\0T={self.T}\0".encode()
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in b"\0" + (entry / "environ").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)


def cronlock() -> Path:
    """The installed command."""
    beside = Path(sys.executable).with_name("cronlock")
    found = str(beside) if beside.exists() else shutil.which("cronlock")
    if not found:
        pytest.fail("cronlock is not installed: pip install -e .")
    return Path(found)


@functools.cache
def can_unshare() -> bool:
    if sys.platform != "linux" or os.geteuid() != 0 or not shutil.which("unshare"):
        return False
    return subprocess.run([*UNSHARE, "mount", "-t", "tmpfs", "tmpfs", "/var/lib"], capture_output=True).returncode == 0


def _within_reach(directory: Path) -> str:
    """Mounts that let nobody come to a Python which is installed in root's home."""
    needed = {Path(sys.prefix), Path(sys.base_prefix), *map(Path, cronlock_package.__path__)}
    closed = {path: up for path in needed for up in path.parents if not up.stat().st_mode & stat.S_IXOTH}
    keep, show = [], []
    for number, path in enumerate(closed):
        aside = directory / f"aside{number}"
        keep.append(f"mkdir -p {aside}; mount --bind {path} {aside};")
        show.append(f"mkdir -p {path}; mount --move {aside} {path};")
    return " ".join([*keep, *(f"mount -t tmpfs -o mode=755 tmpfs {up};" for up in set(closed.values())), *show])


def need_root() -> None:
    """Skip what makes mounts or needs two users."""
    if not can_unshare():
        pytest.skip("needs root on Linux, with namespaces allowed")
