"""`flock:` — flock(2) on a file of one machine. The embedded default, and what moves over from flock(1).

The kernel's lock decides, never what the file says: a pid in it may be anybody's by now. The file is never
unlinked, because a waiter that has the old inode open and a newcomer that makes a new one would both hold
"the" lock. Two kinds of NAME:

- a plain name: `DIR/NAME.lock`, which is ours, so it also carries the claim state; history in `DIR/NAME.runs`;
- an absolute path: that file or directory itself, opened as found and never written (people lock `"$0"`), so
  that flock(1) on the same path excludes us and we it. Its state lives in the default directory under a key.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time

from cronlock import clock, state
from cronlock.backends.urls import decoded
from cronlock.errors import UNANSWERED, BackendError, ConfigError, LeaseLost, PermissionDenied, UsageError
from cronlock.lean import digest, signal, suppress
from cronlock.local import default_directory
from cronlock.model import Busy, Done, Grant, Run, Status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from cronlock.model import Finding

STATE_LIMIT = 1 << 20  # bytes of a state that we are willing to read
HISTORY_SLACK = 2 * state.KEEP  # lines after which NAME.runs is rewritten to its last KEEP
OPTIONS = ("prefix", "allow_local")
NO = ("", "0", "no", "false")  # ?allow_local=
SHARED = "for a job of several users give an absolute path as NAME, which is locked and never written"
READABLE = "a file that is locked by its path has to be there, or this user able to make it, and readable (over NFS: writable)"
ELSEWHERE = (
    "the record of a NAME that is a path is kept there, and --once-per and --min-hold need it: set HOME to a directory of this user's own"
)


def connect(url: str) -> FlockBackend:
    """`flock:`, `flock:/dir`, `flock:///dir`, each with `?prefix=` (file: is the same)."""
    directory, options = parse(url, OPTIONS)
    return FlockBackend(directory or default_directory(), options.get("prefix", ""), made_by_us=not directory)


def parse(url: str, known: Sequence[str]) -> tuple[str, dict[str, str]]:
    """The directory ('' if none is given) and the query of a file backend's URL."""
    scheme, _, rest = url.partition(":")
    rest, _, query = rest.partition("?")
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host:
            raise UsageError(f"{scheme}://{host}…: a file backend has no host, write {scheme}:///{host}{slash}{path} for a directory")
        rest = slash + path
    if rest and not rest.startswith("/"):
        raise UsageError(f"{scheme}:{rest}: the directory must be absolute, since cron starts jobs elsewhere than your shell")
    options = {}
    for part in query.split("&") if query else ():
        key, _, value = part.partition("=")
        if key not in known:
            raise UsageError(f"{scheme}: unknown option {key!r} (known: {', '.join(known)})")
        options[key] = value
    return decoded(rest), options


class FlockBackend:
    timeout = 10.0
    durable = False  # fsync also where no period label needs it

    def __init__(self, directory: str, prefix: str = "", *, made_by_us: bool = True) -> None:
        self.directory = directory
        self.prefix = prefix
        self.where = f"flock://{directory}"
        self.made_by_us = made_by_us
        self.warnings: list[str] = []
        self._leases: dict[str, FlockLease] = {}
        self._won: dict[str, int] = {}  # name -> locked descriptor, from wait() to the next attempt
        self._held_until: dict[str, float] = {}  # name -> lease-clock end of a min-hold that we ran into

    def try_acquire(self, grant: Grant, until: float) -> FlockLease | Busy | Done:
        place = self._place(grant.name)
        fd = self._won.pop(grant.name, None)
        if fd is None:
            self._ready(place)
            fd = self._lock(place)
        if fd is None:
            return Busy(_look(place)[0].run)
        try:
            known = _read_state(place, self.warnings)
            answer = state.claim(known, grant, clock.wall())
            if isinstance(answer, state.State):
                self._record(place, fd, answer, grant)
                lease = self._granted(place, fd, answer, state.vanished(known))
                self._leases[grant.run.token] = lease
                return lease
        except BaseException:
            os.close(fd)
            raise
        if isinstance(answer, Busy):
            self._held_until[grant.name] = clock.now() + (answer.ttl_left or 0.0)
        _unlock(fd)
        return answer

    def abandon(self, grant: Grant, until: float) -> None:
        lease = self._leases.pop(grant.run.token, None)
        if lease:
            lease.withdraw()

    def wait(self, name: str, until: float) -> None:
        """Blocks in the kernel, which hands the lock over as the holder lets go; the next attempt has it already."""
        hold = min(self._held_until.pop(name, 0.0), until)
        if hold > clock.now():
            time.sleep(clock.left(hold))
            return
        place = self._place(name)
        fd = open_lock(place)
        try:
            if _blocking(fd, until) and _same_file(place.path, fd):
                self._won[name], fd = fd, -1
        except OSError as error:
            raise lock_error(error, place.path) from None
        finally:
            if fd >= 0:
                os.close(fd)

    def status(self, name: str, until: float) -> Status:
        place = self._place(name)
        try:
            found = os.stat(place.path, follow_symlinks=False)
        except FileNotFoundError:
            return Status(name, held=False)
        except OSError as error:
            raise lock_error(error, place.path) from None
        known, detail = _look(place)
        held = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino} " in _kernel_locks()
        run = known.run
        if run and not held and not run.outcome:
            run = run.but(outcome="vanished")
        return Status(name, held=held, run=run, held_until=known.held, detail=detail)

    def names(self, until: float) -> Iterator[str]:
        try:
            entries = sorted(os.listdir(self.directory))
        except FileNotFoundError:
            return
        except OSError as error:
            raise lock_error(error, self.directory) from None
        for entry in entries:
            if entry.endswith(".lock") and entry.startswith(self.prefix):
                yield entry[len(self.prefix) : -len(".lock")]

    def history(self, name: str, until: float) -> Sequence[Run]:
        path = self._place(name).runs_path
        try:
            lines = _lines(path)
        except OSError as error:
            raise lock_error(error, path) from None
        return [run for line in lines if (run := _run_or_none(line))][-state.KEEP :]

    def seize(self, name: str, lost: Run, by: Run, until: float) -> None:
        """Only on record, where the holder finds it within a second: the kernel's lock is nobody's but its own to give."""
        place = self._place(name)
        known = _look(place)[0]
        if known.run is None or known.run.token != lost.token or known.run.outcome:
            raise LeaseLost(f"{place.path}: the last grant is no longer that of pid {lost.pid} on {lost.host}")
        try:
            fd = os.open(place.state_path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise lock_error(error, place.state_path) from None
        try:
            _write_state(place, fd, state.seized(known, lost, by, clock.wall()), durable=self.durable)
        finally:
            os.close(fd)
        _append_runs(place.runs_path, [lost])

    def check(self, until: float) -> Iterable[Finding]:
        from cronlock.backends import files_check

        return files_check.directory(self.directory, _locked, parents=self.made_by_us)

    def key(self, name: str) -> str:
        return "flock -n " + _quoted(self._place(name).path) + " COMMAND"

    def close(self) -> None:
        for fd in self._won.values():
            os.close(fd)
        self._won.clear()
        for lease in list(self._leases.values()):
            lease.drop()

    def _lock(self, place: Place) -> int | None:
        return lock(place)

    def _granted(self, place: Place, fd: int, granted: state.State, previous: Run | None) -> FlockLease:
        return FlockLease(self, place, fd, granted, previous)

    def _forget(self, token: str) -> None:
        self._leases.pop(token, None)

    def _place(self, name: str) -> Place:
        if name.startswith("/"):
            key = os.path.join(default_directory(), _key(name))
            return Place(name, key + ".state", key + ".runs", own=False)
        if "/" in name:
            raise UsageError(
                f"{name!r} is a relative path: cron starts jobs in another directory than your shell, so give an absolute one, "
                "or a plain name without slash"
            )
        stem = os.path.join(self.directory, _fitting(self.prefix + name))
        return Place(stem + ".lock", stem + ".lock", stem + ".runs", own=True)

    def _ready(self, place: Place) -> None:
        """The directory, made again if a reboot took it; of a user's own path only the last component."""
        if place.own and not os.path.isdir(self.directory):
            make_directory(self.directory, parents=self.made_by_us)

    def _record(self, place: Place, fd: int, granted: state.State, grant: Grant) -> None:
        """A path locks also for a user who can keep no record of it, unless a period or a hold is to be remembered."""
        try:
            _write_state(place, fd, granted, durable=self.durable or bool(grant.run.label))
        except UNANSWERED:
            if place.own or grant.run.label or grant.min_hold:
                raise
            place.state_path = place.runs_path = ""


class Place:
    """Where one name lives."""

    def __init__(self, path: str, state_path: str, runs_path: str, *, own: bool) -> None:
        self.path, self.state_path, self.runs_path, self.own = path, state_path, runs_path, own
        self.access = os.O_RDWR if own else os.O_RDONLY


class FlockLease:
    valid_for = float("inf")  # as long as a descriptor is open, here or in the guard
    watch_fd = None

    def __init__(self, backend: FlockBackend, place: Place, fd: int, granted: state.State, previous: Run | None) -> None:
        if granted.run is None:
            raise TypeError("a grant has a run")
        self.run = granted.run
        self.previous = previous
        self._backend, self._place, self._fd, self._state = backend, place, fd, granted
        self._written = 0  # when the state was, as we last read it
        self._seized = ""  # by whom

    @property
    def fds(self) -> Sequence[int]:
        return (self._fd,) if self._fd >= 0 else ()

    def renew(self, until: float) -> None:
        """Nothing runs out here; but a file that was replaced locks nobody out any more."""
        if self._fd < 0:
            raise LeaseLost(f"{self._place.path}: the lock was given back")
        if not _same_file(self._place.path, self._fd):
            raise LeaseLost(f"{self._place.path} was removed or replaced: others now lock another file")
        self.must_be_last()

    def must_be_last(self) -> None:
        """LeaseLost if an operator took it away (seize), which is looked up only where somebody has written."""
        try:
            written = os.stat(self._place.state_path).st_mtime_ns
        except OSError:
            return  # no record, nothing to say
        if written != self._written:
            last, self._written = _look(self._place)[0].run, written
            if last and last.token != self.run.token and (taken := state.taken_away(last)):
                self._seized = f"{self._place.path}: {taken}"
        if self._seized:
            raise LeaseLost(self._seized)

    def regain(self, until: float) -> None:
        self.must_be_last()
        raise LeaseLost(f"{self._place.path} was removed or replaced: others now lock another file")

    def release(self, run: Run, until: float) -> None:
        self.renew(until)
        try:
            if self._place.state_path:
                _write_state(self._place, self._fd, state.ended(self._state, run), durable=self._backend.durable or bool(run.label))
                _append_runs(self._place.runs_path, [r for r in (self.previous, run) if r])
        except UNANSWERED as error:
            self._backend.warnings.append(f"{error}; how this run ended is not on record")
        finally:
            fd, self._fd = self._fd, -1
            self._backend._forget(self.run.token)
            _unlock(fd)

    def withdraw(self) -> None:
        """Let go as if it had never been granted: its label is not used up."""
        if self._fd >= 0 and self._place.state_path:
            with suppress(BackendError, ConfigError, PermissionDenied):
                _write_state(self._place, self._fd, state.withdrawn(self._state, self.run.token), durable=False)
        self.drop()

    def drop(self) -> None:
        """Let go without a word in the history."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            self._backend._forget(self.run.token)
            _unlock(fd)


def make_directory(path: str, *, parents: bool) -> None:
    try:
        # flock(2) needs no more than read access: in a directory of our own nobody else may take root's locks and silence its jobs
        os.makedirs(path, 0o700) if parents else os.mkdir(path, 0o755)
    except FileExistsError:
        if not os.path.isdir(path):
            raise ConfigError(f"{path} is not a directory") from None
    except FileNotFoundError:
        parent = os.path.dirname(path)
        raise ConfigError(f"{parent} does not exist: make it first (only the last part of a given directory is made)") from None
    except OSError as error:
        raise lock_error(error, path) from None


def open_lock(place: Place) -> int:
    """A descriptor that can be locked, not inherited by the command; links, pipes and devices are refused.

    First without O_CREAT: in a sticky directory the kernel refuses O_CREAT on another user's file even to root
    (fs.protected_regular), although opening it is fine.
    """
    flags = place.access | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        try:
            fd = os.open(place.path, flags)
        except FileNotFoundError:
            fd = os.open(place.path, flags | os.O_CREAT, 0o644)
    except OSError as error:
        raise lock_error(error, place.path, SHARED if place.own else READABLE) from None
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode) or (stat.S_ISDIR(mode) and not place.own):
        return fd
    os.close(fd)
    raise ConfigError(f"{place.path} is no regular file, so it is not used as a lock: remove it or give another name")


def lock(place: Place) -> int | None:
    """The locked descriptor, or None if somebody else has it. Bounded: a file that is replaced again and again is an error."""
    for _ in range(10):
        fd = open_lock(place)
        try:
            if not _locked(fd):
                os.close(fd)
                return None
            if _same_file(place.path, fd):
                _must_exclude(place)
                return fd
        except OSError as error:
            os.close(fd)
            if error.errno != errno.ESTALE:  # NFS: the file was removed on the server; open it again by name
                raise lock_error(error, place.path) from None
            continue
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
    raise BackendError(f"{place.path} is replaced again and again while it is being locked: nothing may delete lock files")


def _must_exclude(place: Place) -> None:
    """Some file systems say yes to everybody (FUSE without flock, seen with strace's injected 0 as well)."""
    second = os.open(place.path, place.access | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        granted = _locked(second)
    finally:
        os.close(second)
    if granted:
        raise BackendError(f"{place.path}: locks have no effect on this file system (a second lock of the same file was granted)")


def _unlock(fd: int) -> None:
    """Unlock before close: a copy of the descriptor in another process must not keep the lock."""
    with suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def _locked(fd: int) -> bool:
    """What filelock.lock_descriptor does; importing filelock alone takes five times as long as a bare interpreter's start."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock_error(error: OSError, path: str, advice: str = SHARED) -> BackendError | ConfigError | PermissionDenied:
    """Only EWOULDBLOCK means busy; every other refusal is an error with its own text."""
    code = error.errno
    if code in (errno.EACCES, errno.EPERM):
        who = f"{_owner(path)}permission denied for uid {os.geteuid()}"
        return PermissionDenied(f"{path}: {who}: {advice}")
    if code == errno.ELOOP:
        return ConfigError(f"{path} is a symbolic link, which is not followed: give its target")
    if code in (errno.ENOENT, errno.ENOTDIR):
        return ConfigError(f"{path}: the directory does not exist: make it first")
    if code in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK):
        why = f"locking is not implemented or not working on this file system ({os.strerror(code)})"
        return BackendError(f"{path}: {why}: choose another directory")
    if code == errno.EROFS:
        return BackendError(f"{path}: read-only file system: choose a directory that can be written")
    if code in (errno.ENXIO, errno.EISDIR):
        return ConfigError(f"{path} is no regular file, so it is not used as a lock: remove it or give another name")
    return BackendError(f"{path}: {error.strerror or error}")


def _owner(path: str) -> str:
    for existing in (path, os.path.dirname(path)):
        with suppress(OSError):
            found = os.stat(existing)
            return f"{existing} belongs to uid {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o}; "
    return ""


def _same_file(path: str, fd: int) -> bool:
    try:
        named = os.stat(path, follow_symlinks=False)
    except OSError:
        return False
    mine = os.fstat(fd)
    return (named.st_dev, named.st_ino) == (mine.st_dev, mine.st_ino)


def _look(place: Place) -> tuple[state.State, str]:
    """What is on record, for people; else an empty state and why."""
    try:
        return recorded(_text(place)), ""
    except (OSError, state.Foreign, ConfigError) as error:
        return state.State(), f"record unreadable: {getattr(error, 'strerror', None) or error}"


def _read_state(place: Place, warnings: list[str]) -> state.State:
    """What is on record, under the lock. Something else's text is moved aside with a word and never blocks a job; a newer
    format is an error."""
    try:
        text = _text(place)
    except OSError as error:
        if place.own:  # an unreadable state is no empty one: a label could be run twice
            raise lock_error(error, place.state_path) from None
        return state.State()
    try:
        return recorded(text)
    except state.Foreign as error:
        aside = f"it is now in {place.state_path}.broken"
        try:
            with open(place.state_path + ".broken", "wb", opener=_itself) as file:
                file.write(text)
        except OSError as refused:
            aside = f"it is gone, for {place.state_path}.broken can't be written: {refused.strerror}"
        warnings.append(f"{place.state_path} held something else ({error}): {aside}")
        return state.State()


def _text(place: Place) -> bytes:
    try:
        with open(place.state_path, "rb", opener=_itself) as file:
            return file.read(STATE_LIMIT) or b""
    except FileNotFoundError:
        return b""


def recorded(text: bytes) -> state.State:
    """What follows the line is left of a write that was cut off. Foreign, ConfigError."""
    return state.decode(text.partition(b"\n")[0]) if text.strip() else state.State()


def _write_state(place: Place, fd: int, new: state.State, *, durable: bool) -> None:
    """What needs room is written first, behind the line that counts: a full disk leaves the old state as it was."""
    text = state.encode(new).encode("ascii") + b"\n"
    target = fd
    try:
        if not place.own:
            if not os.path.isdir(os.path.dirname(place.state_path)):
                os.makedirs(os.path.dirname(place.state_path), 0o700, exist_ok=True)
            target = os.open(place.state_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        size = os.fstat(target).st_size
        try:
            _write_at(target, text[size:], size)
        except OSError:
            os.ftruncate(target, size)
            raise
        _write_at(target, text[:size], 0)
        os.ftruncate(target, len(text))
        if durable:  # a period label that a power cut forgets would be run twice
            os.fsync(target)
    except OSError as error:
        raise lock_error(error, place.state_path, SHARED if place.own else ELSEWHERE) from None
    finally:
        if target != fd:
            os.close(target)


def _write_at(fd: int, data: bytes, at: int) -> None:
    """All of it: a write that fits in part says so, and only the next one why."""
    while data:
        written = os.pwrite(fd, data, at)
        data, at = data[written:], at + written


def _append_runs(path: str, runs: list[Run]) -> None:
    """Under the lock, so there is one writer; a full disk loses history, not the run's outcome."""
    with suppress(OSError):
        lines = _lines(path)
        added = [state.encode_run(run).encode("ascii") for run in runs]
        if len(lines) + len(added) <= HISTORY_SLACK:
            with open(path, "ab", opener=_itself) as file:
                file.write(b"".join(line + b"\n" for line in added))
        else:
            with open(path + ".new", "wb", opener=_itself) as file:
                file.write(b"".join(line + b"\n" for line in (lines + added)[-state.KEEP :]))
            os.replace(path + ".new", path)


def _itself(path: str, flags: int) -> int:
    """For open(): no link is followed, no pipe waited for, also beside the lock file."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)


def _lines(path: str) -> list[bytes]:
    try:
        with open(path, "rb", opener=_itself) as file:
            return (file.read() or b"").splitlines()
    except FileNotFoundError:
        return []


def _run_or_none(line: bytes) -> Run | None:
    try:
        return state.decode_run(line)
    except state.Foreign:
        return None


def _kernel_locks() -> str:
    with suppress(OSError), open("/proc/locks") as file:
        return "".join(line for line in file if " FLOCK " in line and "->" not in line)
    return ""


def _quoted(path: str) -> str:
    from shlex import quote

    return quote(path)


def _fitting(name: str) -> str:
    """A file name: NAME itself, or for the very long its beginning and a digest (a component has 255 bytes)."""
    return name if len(os.fsencode(name)) <= 200 else os.fsdecode(os.fsencode(name)[:150]) + "~" + _digest(name)


def _key(path: str) -> str:
    return _fitting(os.path.basename(path.rstrip("/")) or "root") + "@" + _digest(path)


def _digest(text: str) -> str:
    return digest(os.fsencode(text))


class _TimeUp(Exception):
    pass


def _blocking(fd: int, until: float) -> bool:
    """Wait for the lock in the kernel; False: not before `until`. The timer ticks, so that a signal which came just before
    the call blocked is seen at the next tick. ITIMER_REAL does not follow clock steps (setitimer(2))."""

    blocked = True

    def tick(_signum: int, _frame: object) -> None:
        nonlocal blocked
        if blocked and clock.now() >= until:
            blocked = False  # once: another tick, on a host that is slow, would break into what cleans up
            raise _TimeUp

    before = signal.signal(signal.SIGALRM, tick)
    period = max(0.001, min(0.2, clock.left(until)))
    try:
        signal.setitimer(signal.ITIMER_REAL, period, period)
        fcntl.flock(fd, fcntl.LOCK_EX)
        blocked = False
    except _TimeUp:
        return False
    finally:
        blocked = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return True
