"""The mount table, read from the kernel's memory: nothing here touches a mount, so nothing here can hang on one."""

from __future__ import annotations

import os

from cronlock.lean import suppress
from cronlock.model import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

TABLE = "/proc/self/mountinfo"
STATISTICS = "/proc/self/mountstats"
LINKS = 40  # as the kernel: after so many symbolic links a path is a loop

NETWORK = frozenset(
    (
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "ceph",
        "lustre",
        "9p",
        "afs",
        "davfs",
        "gpfs",
        "beegfs",
        "orangefs",
        "gfs2",
        "ocfs2",
        "virtiofs",
        "vboxsf",
        "autofs",
    )
)
"""Types that may hang, or whose locks other machines may see. Every FUSE file system counts as well."""

LOCAL_LOCKS = {
    "9p": "the usual servers grant every lock",
    "virtiofs": "locks stay in this virtual machine",
    "vboxsf": "locks stay in this virtual machine",
    "davfs": "locks stay on this machine",
    "fuse.sshfs": "locks stay on this machine",
    "fuse.rclone": "locks stay on this machine",
    "fuse.s3fs": "locks stay on this machine",
    "fuse.gcsfuse": "locks stay on this machine",
    "fuse.goofys": "locks stay on this machine",
    "fuse.mount-s3": "locks stay on this machine",
    "fuse.curlftpfs": "locks stay on this machine",
}
"""File systems on which two machines both get the lock."""

OPTIONS = ("nolock", "local_lock=flock", "local_lock=all", "nobrl", "localflock", "localflocks", "flock=local")
"""Mount options that keep flock(2) on the client (nfs(5), mount.cifs(8), Lustre, GFS2 and OCFS2, kafs)."""


class Mount(Value):
    point: str
    kind: str
    source: str
    options: tuple[str, ...]
    device: tuple[int, int]

    @property
    def network(self) -> bool:
        return self.kind in NETWORK or self.kind in ("fuse", "fuseblk") or self.kind.startswith("fuse.")

    @property
    def v4(self) -> bool:
        return self.kind == "nfs4"

    @property
    def local_locks(self) -> str:
        """Why another machine would get the same lock as well; empty if nothing speaks for it."""
        shown = f"{self.point} is mounted ({self.kind}"
        if self.kind in LOCAL_LOCKS:
            return f"{shown}) from a file system that does not share locks: {LOCAL_LOCKS[self.kind]}"
        for option in OPTIONS:
            if option in self.options:
                return f"{shown}) with the option {option}, which keeps locks on this machine"
        return ""


def table(text: str | None = None) -> list[Mount]:
    """All mounts of this process; a later one hides earlier ones at the same place. proc_pid_mountinfo(5)."""
    if text is None:
        text = _read(TABLE)
    found = []
    for line in text.splitlines():
        mine, dash, its = line.partition(" - ")
        fields, own = mine.split(" "), its.split(" ")
        if not dash or len(fields) < 6 or len(own) < 3:
            continue
        major, _, minor = fields[2].partition(":")
        options = (*fields[5].split(","), *own[2].split(","))
        found.append(Mount(_plain(fields[4]), own[0], _plain(own[1]), options, (int(major), int(minor))))
    return found


def at(path: str, mounts: Sequence[Mount]) -> Mount | None:
    """The mount that an absolute path lies on, by its letters alone."""
    path, best = os.path.normpath(path), None
    for mount in mounts:
        inside = path == mount.point or path.startswith(mount.point.rstrip("/") + "/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def of_device(number: int, mounts: Sequence[Mount]) -> Mount | None:
    """The mount that something with this st_dev lies on: also behind links and bind mounts, but somebody had to touch it."""
    device = (os.major(number), os.minor(number))
    return next((mount for mount in reversed(mounts) if mount.device == device), None)


def on_network(path: str, mounts: Sequence[Mount] | None = None) -> Mount | None:
    """The network mount that `path` leads to, or None. Links are followed only where the path is still on local disks."""
    mounts = table() if mounts is None else mounts
    if not any(mount.network for mount in mounts):
        return None
    walked, ahead, links = "/", path.split("/"), 0
    while True:
        mount = at(walked, mounts)
        if mount and mount.network:
            return mount
        while ahead and ahead[0] in ("", "."):
            del ahead[0]
        if not ahead:
            return None
        step = ahead.pop(0)
        if step == "..":
            walked = os.path.dirname(walked)
            continue
        walked, before = os.path.join(walked, step), walked
        mount = at(walked, mounts)
        if mount and mount.network:
            return mount
        with suppress(OSError):
            target = os.readlink(walked)
            links += 1
            if links > LINKS:
                return None
            walked, ahead = "/" if target.startswith("/") else before, target.split("/") + ahead


def lease(mount: Mount, text: str | None = None) -> tuple[float, float] | None:
    """NFSv4's lease in seconds, and for how many it has been over (0: it stands). None: this mount has no lease."""
    if not mount.v4:
        return None
    here = False
    for line in (_read(STATISTICS) if text is None else text).splitlines():
        if line.startswith("device "):
            # "device SOURCE mounted on POINT with fstype KIND …", with the same octal escapes as the mount table
            here = _plain(line.partition(" mounted on ")[2].rpartition(" with fstype ")[0]) == mount.point
        elif here and line.lstrip().startswith("nfsv4:"):
            known = dict(word.partition("=")[::2] for word in line.split(":", 1)[1].strip().split(","))
            with suppress(KeyError, ValueError):
                return float(known["lease_time"]), float(known.get("lease_expired", "0"))
    return None


def _plain(text: str) -> str:
    r"""Without the kernel's escapes: \040 for a blank, \011, \012, \134."""
    if "\\" not in text:
        return text
    first, *rest = text.split("\\")
    return first + "".join(chr(int(part[:3], 8)) + part[3:] if part[:3].isdigit() else "\\" + part for part in rest)


def _read(path: str) -> str:
    with suppress(OSError), open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()
    return ""
