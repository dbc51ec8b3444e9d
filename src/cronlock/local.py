"""This host: the user and the directory of its own locks and states, marks of what was said already, and whether it is crowded."""

from __future__ import annotations

import os

from cronlock import clock
from cronlock.lean import digest, suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

SYSTEM_DIRECTORY = "/var/lib/cronlock"
SAID = "said-"
CROWD = 32  # processes that want a processor, for each of them
DAY = 86400.0  # seconds, after which no mark means anything


def default_directory() -> str:
    """/var/lib/cronlock for root, ~/.local/state/cronlock for all others; cron may set no HOME."""
    if os.geteuid() == 0:
        return SYSTEM_DIRECTORY
    return os.path.join(home(os.environ), ".local/state/cronlock")


def home(environ: Mapping[str, str]) -> str:
    """Containers run as users that no password database knows (`docker run --user`): theirs is /, as it is for docker."""
    if environ.get("HOME"):
        return environ["HOME"]
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return "/"


def username() -> str:
    """The effective user's name, or number where it has none."""
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def crowded() -> bool:
    """Whether so many processes want to run, now or on the average of the last minute (proc_loadavg(5)), that an answer which
    does not come says nothing of the store: seen with a thousand starts on two processors and a server that had to share them."""
    with suppress(OSError, ValueError, IndexError), open("/proc/loadavg") as file:
        average, _, _, running, _ = file.read().split()
        return max(float(average), int(running.partition("/")[0])) > CROWD * (os.cpu_count() or 1)
    return False


def lately(what: str, seconds: float) -> bool:
    """Whether `what` was marked on this host no longer ago than that."""
    with suppress(OSError):
        return abs(clock.wall() - os.stat(_mark(what)).st_mtime) < seconds
    return False


def mark(what: str) -> bool:
    """Also removes old marks: jobs come and go. False: it can't be kept, so it had better not be said, or it would be said each time."""
    path = _mark(what)
    try:
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        _forget(os.path.dirname(path))
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        os.utime(path)
    except OSError:
        return False
    return True


def _forget(directory: str) -> None:
    for name in os.listdir(directory):
        path = os.path.join(directory, name)
        if name.startswith(SAID) and "." not in name:  # a lock's files have an ending
            with suppress(FileNotFoundError):  # another run was faster
                if clock.wall() - os.lstat(path).st_mtime > DAY:
                    os.unlink(path)


def _mark(what: str) -> str:
    return os.path.join(default_directory(), SAID + digest(os.fsencode(what)))
