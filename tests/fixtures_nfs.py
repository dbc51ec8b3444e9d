"""`mirror`: a FUSE file system that hands flock(2) on, and that can be frozen as a file server can that is away."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest


def unusable(why: str) -> None:
    """Skip, with the reason; but where everything is meant to be there, its absence is a failure."""
    if os.environ.get("CI") == "true" and os.geteuid() == 0:
        pytest.fail(f"CI has to run this: {why}")
    pytest.skip(why)


class Mirror:
    """`mount` shows `backing`; `freeze()` and `thaw()`."""

    def __init__(self, directory: Path, kind: str) -> None:
        self.backing, self.mount, self._freeze, log = (directory / part for part in ("backing", "mount", "frozen", "log"))
        self.backing.mkdir(parents=True)
        self.mount.mkdir()
        script = Path(__file__).with_name("fuse_flock.py")
        with log.open("w") as output:
            self.server = subprocess.Popen(
                [sys.executable, str(script), str(self.backing), str(self.mount), str(self._freeze), kind],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        end = time.monotonic() + 10
        while f" {self.mount} " not in Path("/proc/self/mountinfo").read_text():
            if self.server.poll() is not None or time.monotonic() > end:
                self.end()
                unusable(f"FUSE does not work here: {log.read_text().strip()[-300:]}")
            time.sleep(0.02)
        self._connection = Path(f"/sys/fs/fuse/connections/{os.minor(self.mount.stat().st_dev)}/abort")

    def freeze(self) -> None:
        self._freeze.touch()

    def thaw(self) -> None:
        self._freeze.unlink(missing_ok=True)

    def end(self) -> None:
        """Whoever hangs in it gets an error, and it is gone."""
        self.thaw()
        self.server.send_signal(signal.SIGCONT)
        with suppress(OSError):
            self._connection.write_text("1")
        self.server.kill()
        self.server.wait()
        subprocess.run(["fusermount3", "-u", "-z", str(self.mount)], capture_output=True)

    _connection = Path("/nowhere")


@pytest.fixture
def mirror(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Mirror]:
    """Its type in the mount table is fuse.mirror, or what the test gives as parameter."""
    if not find_spec("mfusepy"):
        unusable("needs mfusepy (dependency group dev)")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK) or not shutil.which("fusermount3"):
        unusable("needs /dev/fuse and Debian's package fuse3")
    made = Mirror(tmp_path / "mirror", getattr(request, "param", "mirror"))
    yield made
    made.end()
