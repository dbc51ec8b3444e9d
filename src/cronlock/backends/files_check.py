"""What `cronlockctl check` says of a directory of lock files, and of the mount it lies on."""

from __future__ import annotations

import fcntl
import os
import stat

from cronlock import durations
from cronlock.backends import mounts
from cronlock.model import Finding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FULL = 1 << 20  # bytes and, in hundreds, files: less is no room for states and histories


def directory(path: str, locked: Callable[[int], bool], *, parents: bool) -> Iterator[Finding]:
    """Touches it, and makes and removes one file of its own there. `locked`: tries to lock a descriptor, as a run does.
    `parents`: a run would make all of it, not the last part alone."""
    there = path
    while not os.path.exists(there) and there != "/":
        there = os.path.dirname(there)
    mount = mounts.at(os.path.realpath(there), mounts.table())
    if mount and not mount.network:
        yield Finding("ok", "shared by", "the processes of this machine that use this directory, nobody else")
    if mount and mount.kind in ("tmpfs", "ramfs"):
        yield Finding("warning", "kept", f"{mount.point} is {mount.kind}: a reboot forgets periods and history", "a directory on disk")
    if not os.path.isdir(there):
        yield Finding("trouble", "directory", f"{there} is not a directory", "give another one")
        return
    if there != path:
        if not parents and there != os.path.dirname(path):
            yield Finding(
                "trouble", "directory", f"{os.path.dirname(path)} is not there, and a run makes no more than {path} in it", "make it"
            )
        elif os.access(there, os.W_OK | os.X_OK):
            yield Finding("ok", "directory", f"{path} is not there yet; the first run makes it")
        else:
            yield Finding("trouble", "directory", f"{path} is not there, and uid {os.geteuid()} may not make it", "make it")
        return
    yield _modes(path)
    yield _locks(path, locked if mount and not mount.network else _by_filelock)
    room = os.statvfs(path)
    free = room.f_bavail * room.f_frsize
    if free < FULL or (room.f_files and room.f_favail < 100):
        yield Finding(
            "trouble", "room", f"{free >> 10} kB and {room.f_favail} files left", "make room: a state that can't be written stops jobs"
        )
    else:
        yield Finding("ok", "room", f"{free >> 20} MB left")


def _modes(path: str) -> Finding:
    found = os.stat(path)
    mode = stat.S_IMODE(found.st_mode)
    shown = f"{path}, mode {mode:04o}, owner uid {found.st_uid}"
    if not os.access(path, os.W_OK | os.X_OK):
        return Finding("trouble", "directory", f"{shown}: uid {os.geteuid()} may not write there", "chown it to the user of the crontab")
    if mode & 0o022 and not mode & stat.S_ISVTX:
        return Finding("warning", "directory", f"{shown}: others may remove and replace lock files", f"chmod 0700 {path}")
    if mode & 0o022:
        return Finding("warning", "directory", f"{shown}: others may hold any lock there, and so keep jobs off", f"chmod 0700 {path}")
    return Finding("ok", "directory", shown)


def _locks(path: str, also: Callable[[int], bool]) -> Finding:
    """A file system may refuse, or say yes to everybody."""
    name = os.path.join(path, f".check-{os.urandom(6).hex()}")
    fds: list[int] = []
    try:
        for more in (os.O_CREAT | os.O_EXCL, 0):
            fds.append(os.open(name, os.O_RDWR | os.O_CLOEXEC | more, 0o600))  # NFS locks what is open for writing only
        fcntl.flock(fds[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not also(fds[1]):
            return Finding("ok", "locks", "exclude each other")
    except OSError as error:
        return Finding("trouble", "locks", f"can't be taken in {path}: {error.strerror}", "choose another directory")
    finally:
        for fd in fds:
            os.close(fd)
        if fds:
            os.unlink(name)
    return Finding("trouble", "locks", f"have no effect in {path}: two were granted at once", "choose another directory or file system")


def _by_filelock(fd: int) -> bool:
    """As other Python programs lock: the second to ask on a network or FUSE mount. Its import takes three times as long as all
    the rest of this, and on the kernel's own file systems flock(2) is the same code for everybody."""
    from filelock import lock_descriptor

    return lock_descriptor(fd, blocking=False)


def mount(of: mounts.Mount | None) -> Iterator[Finding]:
    """Touches nothing."""
    if of is None:
        yield Finding("trouble", "mount", "there is none, so locks would be shared by this machine only", "mount the share, or use flock:")
        return
    shown = f"{of.source} on {of.point} ({of.kind})"
    if of.local_locks:
        yield Finding("trouble", "mount", f"{of.local_locks}, so two machines would both get the lock", "mount it differently")
    elif of.kind in ("nfs", "nfs4") and "soft" in of.options:
        text = f"{shown} is mounted soft: a server that is slow for a moment loses writes"
        yield Finding("warning", "mount", text, "mount it hard; cronlock never waits for it longer than ?timeout=")
    else:
        yield Finding("ok", "mount", shown)
    if (lease := mounts.lease(of)) is not None:
        text = f"the server's lease is {durations.show(lease[0])}: the ttl is that at most"
        over = f"; it ran out {durations.show(lease[1])} ago" if lease[1] else ""
        yield Finding("trouble" if lease[1] else "ok", "lease", text + over, "is the server away?" if lease[1] else "")
