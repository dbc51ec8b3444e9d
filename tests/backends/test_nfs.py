"""nfs: — the contract on a FUSE file system that hands flock on, the same one frozen, and mount tables as text."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from cronlock import clock
from cronlock.backends import files, flock, mounts, nfs
from cronlock.errors import BackendError, UsageError
from cronlock.model import Busy
from cronlock.testing import BackendContract, finished, grant, held, soon
from fixtures_nfs import Mirror
from fixtures_store import CRONLOCK, Started, alive, until

Start = Callable[..., Started]


class TestContract(BackendContract):
    increments = 25  # losers look again after 200 ms

    @pytest.fixture
    def url(self, mirror: Mirror) -> str:
        return f"nfs://{mirror.mount}/locks?timeout=5s"

    @pytest.fixture
    def dead_url(self, mirror: Mirror) -> str:
        mirror.freeze()
        return f"nfs://{mirror.mount}/locks?timeout=5s"


class TestAway:
    """The server does not answer."""

    def test_costs_the_timeout_and_one_line(self, mirror: Mirror, start: Start) -> None:
        mirror.freeze()
        began = time.monotonic()
        status, out, err = start("j", "true", backend=f"nfs://{mirror.mount}?timeout=2s").end()
        assert (status, out) == (69, "")
        assert err == f"cronlock: {mirror.mount} does not answer within 2s (stale mount? server down?)\n"
        assert time.monotonic() - began < 3.5

    def test_what_was_left_behind_takes_nothing_later(self, mirror: Mirror, start: Start, tmp_path: Path) -> None:
        mirror.freeze()
        assert start("j", "true", backend=f"nfs://{mirror.mount}?timeout=1s").end()[0] == 69
        assert len(helpers(tmp_path)) == 1
        mirror.thaw()
        until(lambda: not helpers(tmp_path))
        state = mirror.backing / "j.lock"
        assert not state.exists() or state.read_text() == ""
        assert start("j", "true", backend=f"nfs://{mirror.mount}?timeout=1s").end() == (0, "", "")

    def test_a_signal_ends_the_attempt_meanwhile(self, mirror: Mirror, start: Start, tmp_path: Path) -> None:
        mirror.freeze()
        process = start("j", "true", backend=f"nfs://{mirror.mount}?timeout=1m")
        until(lambda: helpers(tmp_path))
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.end()[0] == 128 + signal.SIGTERM
        assert time.monotonic() - began < 7

    def test_a_waiter_gives_up(self, mirror: Mirror, start: Start, tmp_path: Path) -> None:
        url = f"nfs://{mirror.mount}?timeout=1s"
        start("j", "-c", f"touch {tmp_path}/up; sleep 60", backend=url)
        until((tmp_path / "up").exists)
        waiter = start("-w", "inf", "j", "true", backend=url)
        until(lambda: len(helpers(tmp_path)) == 2)
        mirror.freeze()
        status, _, err = waiter.end(15)
        assert status == 69
        assert "does not answer" in err

    def test_nothing_else_hangs_either(self, mirror: Mirror) -> None:
        backend = nfs.connect(f"nfs://{mirror.mount}?timeout=1s")
        lease = held(backend, "j")
        mirror.freeze()
        for call in (
            lambda until: lease.renew(until),
            lambda until: lease.release(finished(lease), until),
            lambda until: backend.status("j", until),
            lambda until: backend.names(until),
            lambda until: backend.history("j", until),
        ):
            began = clock.now()
            with pytest.raises(BackendError, match="does not answer"):
                call(began + 0.3)
            assert clock.now() - began < 1
        mirror.thaw()
        lease.release(finished(lease), soon())  # the same helper is back
        assert not backend.status("j", soon()).held
        backend.close()

    @pytest.mark.parametrize("how", ["open and flock hang", "everything hangs"])
    def test_in_mid_run_the_command_is_stopped(self, mirror: Mirror, start: Start, tmp_path: Path, how: str) -> None:
        """Everything: close(2) asks a FUSE server, too, and waits for it even in an exiting process."""
        command = f"echo $$ > {tmp_path}/pid; exec sleep 60"
        process = start("-t", "6s", "j", "-c", command, backend=f"nfs://{mirror.mount}?timeout=1s")
        pid = int(until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text()))
        if how == "everything hangs":
            mirror.server.send_signal(signal.SIGSTOP)
        else:
            mirror.freeze()
        began = time.monotonic()
        until(lambda: not alive(pid), 10)
        assert time.monotonic() - began < 6
        status, _, err = process.end(15)
        assert status == 76
        assert "no answer in time" in err
        assert time.monotonic() - began < 6 + 5 + 1  # ttl, release, and a second


class TestHolding:
    def test_a_killed_cronlock_keeps_it_until_the_tree_is_gone(self, mirror: Mirror, start: Start, tmp_path: Path) -> None:
        url = f"nfs://{mirror.mount}?timeout=5s"
        script = f"trap '' TERM; echo $$ > {tmp_path}/pid; while :; do sleep 0.1; done"
        process = start("--kill-after", "1.5s", "j", "-c", script, backend=url)
        pid = int(until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text()))
        process.kill()
        until(lambda: not helpers(tmp_path))
        backend = nfs.connect(url)
        assert isinstance(backend.try_acquire(grant("j"), soon()), Busy)
        assert alive(pid)
        until(lambda: not isinstance(backend.try_acquire(grant("j"), soon()), Busy))
        assert not alive(pid)
        backend.close()

    def test_a_killed_helper_costs_the_run_but_not_the_lock(self, mirror: Mirror, start: Start, tmp_path: Path) -> None:
        url = f"nfs://{mirror.mount}?timeout=5s"
        process = start("-t", "2s", "j", "-c", f"echo $$ > {tmp_path}/pid; exec sleep 60", backend=url)
        pid = int(until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text()))
        (helper,) = helpers(tmp_path)
        os.kill(helper, signal.SIGKILL)
        backend = nfs.connect(url)
        assert isinstance(backend.try_acquire(grant("j"), soon()), Busy)
        until(lambda: not isinstance(backend.try_acquire(grant("j"), soon()), Busy))
        assert not alive(pid)
        backend.close()
        assert process.end()[0] == 76

    def test_a_replaced_file_is_lost(self, mirror: Mirror, start: Start, tmp_path: Path) -> None:
        process = start("-t", "2s", "j", "-c", f"touch {tmp_path}/up; exec sleep 60", backend=f"nfs://{mirror.mount}")
        until((tmp_path / "up").exists)
        (mirror.mount / "j.lock").unlink()
        status, _, err = process.end()
        assert status == 76
        assert "removed or replaced" in err

    def test_flock_1_on_an_absolute_path_excludes_us_and_we_it(self, mirror: Mirror, start: Start) -> None:
        path = mirror.mount / "theirs"
        path.write_text("untouched")
        url = f"nfs://{mirror.mount}/unused"
        theirs = ["flock", "-n", "-E", "9", str(path)]
        assert start(str(path), *theirs, "true", backend=url).end()[0] == 9
        ours = subprocess.run([*theirs, CRONLOCK, "-b", url, str(path), "true"], stderr=subprocess.PIPE, timeout=30)
        assert (ours.returncode, ours.stderr) == (75, b"")
        assert path.read_text() == "untouched"

    def test_the_guard_and_cronlock_have_nothing_of_the_mount_open(self, mirror: Mirror, start: Start, tmp_path: Path) -> None:
        process = start("j", "-c", f"touch {tmp_path}/up; exec sleep 60", backend=f"nfs://{mirror.mount}")
        until((tmp_path / "up").exists)
        for pid in (process.pid, process.guard):
            assert not any(os.readlink(fd).startswith(str(mirror.mount)) for fd in Path(f"/proc/{pid}/fd").iterdir())


class TestRouting:
    def test_flock_on_a_network_mount_is_as_bounded(self, mirror: Mirror, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(mirror.mount)
        mirror.freeze()
        for url, name in (
            (f"flock://{mirror.mount}/d", "j"),
            (f"flock://{tmp_path}/link/d", "j"),
            (f"flock://{tmp_path}/d", f"{mirror.mount}/file"),
        ):
            backend = files.connect(url)
            with pytest.raises(BackendError, match="does not answer"):
                backend.try_acquire(grant(name), soon(0.5))
            assert backend.where == url.partition("?")[0]
            backend.close()
        backend = files.connect(f"flock://{tmp_path}/d")
        lease = held(backend, "j")
        assert isinstance(lease, flock.FlockLease)
        backend.close()

    def test_no_fork_is_refused_there_and_leaves_no_run_behind(self, mirror: Mirror, start: Start, tmp_path: Path) -> None:
        """Nobody would stop the command when the server gives its lock to another machine."""
        url = f"flock://{mirror.mount}/locks"
        status, _, err = start("-F", "j", "touch", str(tmp_path / "ran"), backend=url).end()
        assert status == 64 and err.startswith("cronlock: -F works with local file locks only: ")
        assert start("j", "true", backend=url).end() == (0, "", "")
        backend = files.connect(url)
        assert [run.outcome for run in backend.history("j", soon())] == ["ok"] and not (tmp_path / "ran").exists()
        backend.close()

    @pytest.mark.parametrize("mirror", ["sshfs"], indirect=True)
    @pytest.mark.parametrize("path", ["mirror/mount", "link"])
    def test_locks_that_stay_here_are_refused(self, mirror: Mirror, start: Start, tmp_path: Path, path: str) -> None:
        (tmp_path / "link").symlink_to(mirror.mount)
        status, _, err = start("j", "true", backend=f"nfs://{tmp_path}/{path}").end()
        assert status == 78
        assert err.count("\n") == 1
        assert "fuse.sshfs" in err and str(mirror.mount) in err and "allow_local" in err
        assert start("j", "true", backend=f"nfs://{tmp_path}/{path}?allow_local=1").end() == (0, "", "")

    def test_a_share_that_is_not_mounted_is_refused(self, mirror: Mirror, start: Start, tmp_path: Path) -> None:
        """Its mount point is an empty directory of each machine's own: at boot, or after a mount that failed, all would run the job."""
        locks = tmp_path / "locks"
        status, out, err = start("j", "true", backend=f"nfs://{locks}").end()
        assert (status, out, err.count("\n")) == (78, "", 1)
        assert err.startswith(f"cronlock: {locks} lies on ") and "is the share not mounted?" in err
        assert not locks.exists()
        assert start("j", "true", backend=f"nfs://{locks}?allow_local=1").end() == (0, "", "")
        assert start(f"{tmp_path}/file", "true", backend=f"nfs://{locks}").end() == (0, "", "")  # said to be on this machine

    @pytest.mark.parametrize("url", ["nfs:", "nfs://host/dir", "nfs:dir", "nfs:///d?timeout=0", "nfs:///d?timeout=soon", "nfs:///d?x=1"])
    def test_a_url_that_makes_no_sense(self, url: str) -> None:
        with pytest.raises(UsageError, match="nfs"):
            nfs.connect(url)


V3 = "rw,vers=3,hard,proto=tcp,timeo=600,mountaddr=10.0.0.1,{},addr=10.0.0.1"
V4 = "rw,vers=4.2,rsize=32768,hard,proto=tcp,timeo=600,sec=sys,clientaddr=10.0.0.11,{},addr=10.0.0.1"
TABLE = f"""\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 27 0:24 / /mnt rw,relatime shared:5 master:1 - tmpfs tmpfs rw
31 30 0:25 / /mnt/v3 rw,relatime - nfs srv:/export {V3.format("local_lock=none")}
32 30 0:26 / /mnt/v4 rw,relatime shared:7 - nfs4 srv:/ {V4.format("local_lock=none")}
33 30 0:27 / /mnt/nolock rw,relatime - nfs srv:/export {V3.format("nolock,local_lock=all")}
34 30 0:28 / /mnt/flock rw,relatime - nfs srv:/export {V3.format("local_lock=flock")}
35 30 0:29 / /mnt/posix rw,relatime - nfs srv:/export {V3.format("local_lock=posix")}
36 30 0:30 / /mnt/ssh rw,nosuid,nodev - fuse.sshfs me@srv: rw,user_id=0
37 30 0:26 /jobs /mnt/a\\040b\\134c rw,relatime - nfs4 srv:/jobs\\040x {V4.format("local_lock=none")}
38 30 0:31 / /mnt/smb rw - cifs //srv/share rw,vers=3.1.1,nobrl
39 30 0:32 / /mnt/smb2 rw - cifs //srv/share rw,vers=3.1.1
40 32 0:33 / /mnt/v4/local rw - ext4 /dev/vdb rw
41 30 0:34 / /mnt/twice rw - ext4 /dev/vdc rw
42 41 0:25 / /mnt/twice rw - nfs srv:/export {V3.format("local_lock=none")}
43 30 0:35 / /mnt/lustre rw - lustre 10.0.0.1@tcp:/x rw,localflock,lazystatfs
44 30 0:36 / /mnt/vm rw - 9p share rw,trans=virtio
45 30 0:37 / /mnt/auto rw - autofs /etc/auto.x rw,fd=5
broken line
"""


@pytest.mark.parametrize(
    ("path", "point"),
    [
        ("/var/lib/cronlock", None),
        ("/mnt", None),
        ("/mnt/v3", "/mnt/v3"),
        ("/mnt/v3x/y", None),
        ("/mnt/v4/a/b/", "/mnt/v4"),
        ("/mnt//tmp/../v3/./x", "/mnt/v3"),
        ("/mnt/v4/../v3/x", "/mnt/v4"),  # a walk that touches v4
        ("/mnt/v4/local/x", "/mnt/v4"),  # the way there leads over the network
        ("/mnt/a b\\c/jobs", "/mnt/a b\\c"),
        ("/mnt/twice/x", "/mnt/twice"),
        ("/mnt/smb2/x", "/mnt/smb2"),
        ("/mnt/auto/x", "/mnt/auto"),
    ],
)
def test_the_mount_of_a_path(path: str, point: str | None) -> None:
    found = mounts.on_network(path, mounts.table(TABLE))
    assert (found.point if found else None) == point


@pytest.mark.parametrize(
    ("point", "why"),
    [
        ("/mnt/v3", ""),
        ("/mnt/v4", ""),
        ("/mnt/posix", ""),
        ("/mnt/smb2", ""),
        ("/mnt/nolock", "option nolock"),
        ("/mnt/flock", "option local_lock=flock"),
        ("/mnt/smb", "option nobrl"),
        ("/mnt/lustre", "option localflock"),
        ("/mnt/ssh", "does not share locks"),
        ("/mnt/vm", "does not share locks"),
    ],
)
def test_locks_that_stay_local(point: str, why: str) -> None:
    found = mounts.at(point, mounts.table(TABLE))
    assert found is not None
    assert why in found.local_locks and bool(why) == bool(found.local_locks)
    assert not why or point in found.local_locks


def test_bind_mounts_are_told_by_their_device() -> None:
    table = mounts.table(TABLE)
    assert (mounts.of_device(os.makedev(0, 26), table) or table[0]).kind == "nfs4"
    assert mounts.of_device(os.makedev(9, 9), table) is None


STATISTICS = """\
device tmpfs mounted on /mnt with fstype tmpfs
device srv:/export mounted on /mnt/v3 with fstype nfs statvers=1.1
\topts:\trw,vers=3
\tcaps:\tcaps=0xf
device srv:/jobs\\040x mounted on /mnt/a\\040b\\134c with fstype nfs4 statvers=1.1
\tnfsv4:\tbm0=0xfdffbfff,bm1=0x40fdbe3e,acl=0x3,sessions,pnfs=not configured,lease_time=90,lease_expired=0
device srv:/ mounted on /mnt/v4 with fstype nfs4 statvers=1.1
\tnfsv4:\tbm0=0xfdffbfff,bm1=0x40fdbe3e,acl=0x3,sessions,pnfs=not configured,lease_time=10,lease_expired=4
\tsec:\tflavor=1
"""


@pytest.mark.parametrize(
    ("point", "lease"), [("/mnt/v3", None), ("/mnt/v4", (10.0, 4.0)), ("/mnt/a b\\c", (90.0, 0.0)), ("/mnt/ssh", None)]
)
def test_the_servers_lease(point: str, lease: tuple[float, float] | None) -> None:
    found = mounts.at(point, mounts.table(TABLE))
    assert found is not None
    assert mounts.lease(found, STATISTICS) == lease
    assert mounts.lease(found, "") is None


def test_a_link_loop_is_no_network(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert mounts.on_network(f"{tmp_path}/a/x", mounts.table(TABLE)) is None


def helpers(tmp_path: Path) -> set[int]:
    """Those of what `start` started: other tests, in a process beside this one, have theirs."""
    found = set()
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            with suppress(FileNotFoundError, ProcessLookupError):
                if (directory / "comm").read_text() != "cronlock-nfs\n" or not alive(int(directory.name)):
                    continue
                if f"T={tmp_path}".encode() in (directory / "environ").read_bytes().split(b"\0"):
                    found.add(int(directory.name))
    return found
