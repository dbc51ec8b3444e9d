"""The helper of `nfs:`: the process that touches the mount, and the line over which it is asked.

question    [number, what, details…]                  one line of JSON each way
answer      [number, value or error, whether an envelope is attached, warnings]
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import select
import signal
import socket
import struct
from contextlib import suppress

from cronlock import clock, errors, model, state
from cronlock.backends import flock, mounts
from cronlock.errors import BackendError, ConfigError, LeaseLost
from cronlock.lean import hold_only, nothing, recv_fds, send_fds
from cronlock.model import Busy, Done, Grant, Run, Status, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

    from cronlock.model import Finding

POLL = 0.2  # seconds between a waiter's tries: the kernel polls an NFS server, too, when flock(2) blocks
LOST = (errno.EIO, errno.ESTALE, errno.EBADF)  # what the locked descriptor says when the server has given its lock away


# statx(2)
AT_FDCWD, AT_SYMLINK_NOFOLLOW, AT_STATX_FORCE_SYNC, STATX_BASIC_STATS = -100, 0x100, 0x2000, 0x7FF


class Silent(BackendError):
    """No answer by now."""


class Line:
    """cronlock's end."""

    def __init__(self, local: Local, warnings: list[str]) -> None:
        self._warnings = warnings
        self._sock, its = socket.socketpair()
        self._sock.setblocking(False)
        self._number = self._answered = 0
        self._text, self._envelopes = b"", list[int]()
        self.dead = False
        keep = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            child = os.fork()
            if child == 0:
                _helper(its, local)
            its.close()
            with suppress(ChildProcessError):
                os.waitpid(child, 0)  # gone at once: its own child is the helper, and nobody's descendant
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, keep)

    def ask(self, until: float, what: str, *details: object) -> tuple[Any, int]:
        """One question at a time: who has not answered the last one is not asked another. Silent, or what the helper raised."""
        self.settle(until)
        self.tell(what, *details)
        answer, envelope = self._answer(until)
        if isinstance(answer, Exception):
            raise answer
        return answer, envelope

    def tell(self, what: str, *details: object) -> None:
        self._number += 1
        try:
            self._sock.sendall(_pack([self._number, what, *details]))
        except OSError as error:
            self.dead = not isinstance(error, BlockingIOError)
            raise Silent from None

    def settle(self, until: float) -> None:
        while self._answered < self._number:
            _, envelope = self._answer(until, self._answered + 1)
            if envelope >= 0:
                os.close(envelope)  # came too late; who asked has told the helper to abandon it

    def _answer(self, until: float, number: int = 0) -> tuple[Any, int]:
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        while b"\n" not in self._text:
            if not poll.poll(clock.left(until) * 1000):
                raise Silent
            try:
                text, envelopes = recv_fds(self._sock, 1 << 16, 4)
            except OSError:
                text, envelopes = b"", []
            self._envelopes += envelopes
            self._text += text
            if not text:
                self.dead = True
                raise Silent
        line, _, self._text = self._text.partition(b"\n")
        self._answered, answer, attached, warnings = _unpack(line)
        self._warnings += warnings
        return answer, self._envelopes.pop(0) if attached else -1

    def close(self) -> None:
        self._sock.close()
        while self._envelopes:
            os.close(self._envelopes.pop())


def _helper(sock: socket.socket, local: Local) -> NoReturn:
    """The helper's whole life, in a forked process. No signal but KILL ends it: it holds the lock. The end of the line does."""
    try:
        if os.fork() == 0:
            os.setsid()
            os.chdir("/")
            signal.set_wakeup_fd(-1)
            with suppress(OSError), open("/proc/self/comm", "w") as comm:
                comm.write("cronlock-nfs")
            hold_only(nothing(), {sock.fileno()})
            _serve(sock, local)
    finally:
        os._exit(0)  # close, no unlock: the guard's copy of the envelope may still be needed


def _serve(sock: socket.socket, local: Local) -> None:
    local.sock = sock
    text = b""
    while True:
        while b"\n" not in text:
            more = sock.recv(1 << 16)
            if not more:
                return
            text += more
        line, _, text = text.partition(b"\n")
        number, what, *details = _unpack(line)
        envelope: int | None = None
        try:
            answer = getattr(local, f"do_{what}")(*details)
            if isinstance(answer, NetLease):
                envelope = answer.envelope()
                answer = (answer.run, answer.previous, answer.mount)
        except Exception as error:
            answer = error
        reply = _pack([number, answer, envelope is not None, local.warnings])
        local.warnings.clear()
        sent = send_fds(sock, reply, [] if envelope is None else [envelope])
        sock.sendall(reply[sent:])
        if envelope is not None:
            os.close(envelope)  # the descriptor itself is still open here


class Local(flock.FlockBackend):
    """What the helper does: the plain backend, and what is different over a network. Only ever used in the helper."""

    durable = True  # another machine sees what has been written only once it has left this one
    allow_local = False
    sock: socket.socket

    def __init__(self, directory: str, prefix: str = "", *, made_by_us: bool = True) -> None:
        super().__init__(directory, prefix, made_by_us=made_by_us)
        self._released: set[str] = set()
        self._mount: mounts.Mount | None = None
        self._until = 0.0
        self._known: dict[str, Sequence[Run]] = {}  # of what is held: the history at the grant

    def do_try_acquire(self, grant: Grant, until: float) -> flock.FlockLease | Busy | Done:
        place = self._place(grant.name)
        self._mount = _mount_of(place.path)
        if self._mount and self._mount.local_locks and not self.allow_local:
            raise ConfigError(refusal(self._mount))
        if not place.own and os.path.isdir(place.path):
            raise ConfigError(f"{place.path} is a directory, and over a network only files can be locked: name a file in it")
        self._until = until
        answer = self.try_acquire(grant, until)
        if isinstance(answer, NetLease):
            self._known[grant.name] = self.history(grant.name, until)
        return answer

    def do_abandon(self, grant: Grant) -> None:
        self.abandon(grant, 0.0)
        if (fd := self._won.pop(grant.name, -1)) >= 0:
            os.close(fd)

    def do_wait(self, name: str, until: float) -> None:
        """Ends early when somebody says something: asked while waiting means that nobody waits any more."""
        place, held = self._place(name), self._held_until.pop(name, 0.0)
        while (now := clock.now()) < until:
            if now >= held and (fd := flock.lock(place)) is not None:
                self._won[name] = fd
                return
            if self._interrupted(max(0.001, min(POLL, until - now))):
                return

    def do_status(self, name: str) -> Status:
        """/proc/locks knows this machine's locks. An NFS server can be asked for the others' without disturbing one
        (F_GETLK, since flock(2) is a byte range there); elsewhere there is only the record."""
        found = self.status(name, 0.0)
        path = self._place(name).path
        if found.held or not os.path.exists(path):
            return found
        mount, last, detail = _mount_of(path), found.run.outcome if found.run else "", found.detail
        if mount and mount.kind in ("nfs", "nfs4"):
            held = _asked(path)
        elif mount and mount.network and last in ("vanished", "released"):
            held, detail = last == "vanished", "says its record: this file system does not tell who holds a lock"
        else:
            return found
        run = found.run.but(outcome="") if found.run and held and last == "vanished" else found.run
        return found.but(held=held, run=run, detail=detail)

    def do_names(self) -> list[str]:
        return list(self.names(0.0))

    def do_history(self, name: str) -> Sequence[Run]:
        """While the lock is held no file is opened: see NetLease.renew."""
        return self._known[name] if name in self._known and self._leases else self.history(name, 0.0)

    def do_check(self) -> list[Finding]:
        return list(self.check(0.0))

    def do_seize(self, name: str, lost: Run, by: Run) -> None:
        self.seize(name, lost, by, 0.0)

    def do_renew(self, token: str) -> None:
        self._lease(token).renew(0.0)

    def do_release(self, token: str, run: Run) -> None:
        """Asked again after an answer that came too late: it has been done."""
        if token in self._leases or token not in self._released:
            self._released.add(token)
            self._lease(token).release(run, 0.0)

    def do_close(self) -> None:
        self.close()

    def _lease(self, token: str) -> flock.FlockLease:
        if token not in self._leases:
            raise LeaseLost(f"{self.directory}: the lock was given back")
        return self._leases[token]

    def _place(self, name: str) -> flock.Place:
        place = super()._place(name)
        place.access = os.O_RDWR  # an NFSv4 server gives an exclusive lock only to who may write (flock(2)): EBADF
        return place

    def _lock(self, place: flock.Place) -> int | None:
        """One that came too late is given back at once, before it could use up a period."""
        fd = flock.lock(place)
        if fd is not None and (clock.now() >= self._until or self._interrupted(0.0)):
            os.close(fd)
            raise BackendError(f"{place.path}: the lock came too late")
        return fd

    def _interrupted(self, seconds: float) -> bool:
        """Something was said, or nobody is there any more."""
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def _granted(self, place: flock.Place, fd: int, granted: state.State, previous: Run | None) -> flock.FlockLease:
        return NetLease(self, place, fd, granted, previous, self._mount)


class NetLease(flock.FlockLease):
    def __init__(
        self, backend: Local, place: flock.Place, fd: int, granted: state.State, previous: Run | None, mount: mounts.Mount | None
    ) -> None:
        super().__init__(backend, place, fd, granted, previous)
        self.mount = mount
        found = os.fstat(fd)
        self._identity = found.st_dev, found.st_ino
        self._direct = bool(mount and mount.kind in ("nfs", "nfs4"))
        if self._direct:  # reads ask the server, not the cache (no alignment needed there)
            fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_DIRECT)

    def envelope(self) -> int:
        kept, pen = socket.socketpair()
        send_fds(pen, b".", [self._fd])
        pen.close()
        return kept.detach()

    def renew(self, until: float) -> None:
        """The record is read through the locked descriptor: on NFSv4 that renews the server's lease, and EIO tells that the lock
        was lost, as it does after a write and fsync, but leaves nothing behind that a close would have to wait for. No file is
        opened: a server that has just started opens none for a minute or two, while its clients get their locks back."""
        path = self._place.path
        if self._fd < 0:
            raise LeaseLost(f"{path}: the lock was given back")
        trouble: OSError | None = None
        try:
            record = os.pread(self._fd, flock.STATE_LIMIT if self._direct else 1, 0)
        except OSError as error:
            record, trouble = b"", error
        try:
            named = _look(path)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise flock.lock_error(error, path) from None
            named = None
        if named != self._identity:
            raise LeaseLost(f"{path} was removed or replaced: others now lock another file")
        if trouble and trouble.errno in LOST:  # and the server is there: it has just told us of the file
            raise LeaseLost(f"{path}: the server has dropped the lock ({trouble.strerror}), so this machine was cut off")
        if trouble:
            raise flock.lock_error(trouble, path)
        if self._direct and self._place.own:
            self._must_be_mine(record)
        else:
            self.must_be_last()

    def _must_be_mine(self, record: bytes) -> None:
        """Who has not got the lock writes no record, but for an operator: another run's means that the server gave the lock away
        and told nobody, as one with NFSv3 does when it was started again and its notice did not arrive here."""
        with suppress(state.Foreign, ConfigError):
            last = flock.recorded(record).run
            if last and last.token != self.run.token:
                who = "taken away by" if last.outcome == "released" else f"given by the server to pid {last.pid} of"
                raise LeaseLost(f"{self._place.path}: {who} {last.user} on {last.host}")


def _look(path: str) -> tuple[int, int]:
    """Device and inode by the server's word: stat(2) may answer from a cache for a minute. That the directory is opened
    makes the client ask again what its names stand for."""
    import ctypes  # by the helper alone

    os.close(os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    statx = getattr(ctypes.CDLL(None, use_errno=True), "statx", None)
    if statx is None:  # musl before 1.2.5
        found = os.stat(path, follow_symlinks=False)
        return found.st_dev, found.st_ino
    answer = ctypes.create_string_buffer(256)
    if statx(AT_FDCWD, os.fsencode(path), AT_SYMLINK_NOFOLLOW | AT_STATX_FORCE_SYNC, STATX_BASIC_STATS, answer):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    inode, major, minor = *struct.unpack_from("Q", answer, 32), *struct.unpack_from("II", answer, 136)
    return os.makedev(major, minor), inode


def _mount_of(path: str) -> mounts.Mount | None:
    """The mount that the path, or what exists above it, really lies on. Touches it."""
    while path != "/":
        path = os.path.dirname(path)
        with suppress(OSError):
            return mounts.of_device(os.stat(path).st_dev, mounts.table())
    return None


def _asked(path: str) -> bool:
    """Whether another machine has the lock, says the NFS server."""
    with suppress(FileNotFoundError):
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            answer = fcntl.fcntl(fd, fcntl.F_GETLK, struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        finally:
            os.close(fd)
        return bool(struct.unpack("hhqqi", answer)[0] != fcntl.F_UNLCK)
    return False


def refusal(mount: mounts.Mount) -> str:
    return f"{mount.local_locks}, so two machines would both get the lock: mount it differently, use another backend, or say ?allow_local=1"


def _pack(message: object) -> bytes:
    return json.dumps(message, default=_plain).encode("ascii") + b"\n"


def _plain(value: object) -> object:
    if isinstance(value, Value):
        return {"is": type(value).__name__, **value.as_dict()}
    if isinstance(value, OSError):
        return {"is": "BackendError", "text": value.strerror or str(value)}
    if isinstance(value, errors.CronlockError):
        return {"is": type(value).__name__, "text": str(value)}
    return {"is": "RuntimeError", "text": f"{type(value).__name__}: {value}"}


def _unpack(line: bytes) -> Any:
    return json.loads(line, object_hook=_value)


def _value(plain: dict[str, Any]) -> object:
    kind = plain.pop("is")
    if kind == "RuntimeError":
        return RuntimeError(plain["text"])
    if kind == "Mount":
        return mounts.Mount(**{**plain, "options": tuple(plain["options"]), "device": tuple(plain["device"])})
    error = getattr(errors, kind, None)
    return error(plain["text"]) if error else getattr(model, kind)(**plain)
