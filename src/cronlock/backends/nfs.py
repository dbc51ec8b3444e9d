"""`nfs:` — flock(2) on a network file system: the same lock on every machine that mounts it.

A mount whose server is away hangs whoever touches it, in a sleep that no signal handler interrupts and on some file
systems not even SIGKILL ends. So this process never touches it. A helper does all of that, with the plain `FlockBackend`
and a few differences, and is asked over a socket; one that does not answer in time is left behind, and lets go of
whatever it may still get as soon as it finds nobody at the other end.

Not even closing a descriptor is safe (close(2) writes back, and FUSE asks its server), so the locked one stays in the
helper. What the lease hands out, and the guard keeps a copy of, is an *envelope*: a socket in whose queue a copy of
the locked descriptor lies unread (unix(7), SCM_RIGHTS). The lock lives as long as any copy of the envelope is open,
and closing one that is not the last touches nothing.

How long a grant is good for: the ttl, on NFSv4 at most the server's lease. After it a v4 server may give the lock to
another client; a v3 server does so only if it restarts meanwhile, which takes it longer than a ttl.
"""

from __future__ import annotations

import os
from contextlib import suppress

from cronlock import clock, durations, errors
from cronlock.backends import flock, mounts
from cronlock.backends.nfs_helper import Line, Local, Silent, refusal
from cronlock.errors import ConfigError, LeaseLost, UsageError
from cronlock.model import Busy, Done, Grant, Run, Status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from cronlock.model import Finding

TIMEOUT = 10.0
SLICE = 5.0  # seconds after which a waiter's helper must show that it is still there


def connect(url: str) -> NfsBackend:
    """`nfs:///mnt/dir?timeout=5s&prefix=&allow_local=1`; the directory's parent must exist."""
    directory, options = flock.parse(url, ("timeout", *flock.OPTIONS))
    if not directory:
        raise UsageError("nfs: give the directory on the mount, such as nfs:///mnt/share/locks")
    try:
        timeout = durations.parse(options.get("timeout", "10s"))
    except ValueError as error:
        raise UsageError(f"nfs: timeout: {error}") from None
    if timeout <= 0:
        raise UsageError("nfs: timeout: it must be longer than 0")
    local = Local(directory, options.get("prefix", ""), made_by_us=False)
    return NfsBackend(local, f"nfs://{directory}", timeout, allow_local=options.get("allow_local", "0") not in flock.NO)


def beside(plain: flock.FlockBackend, *, allow_local: bool) -> NfsBackend:
    """The same directory and names as a `flock:` backend that turned out to be on a network mount."""
    local = Local(plain.directory, plain.prefix, made_by_us=plain.made_by_us)
    local.warnings = plain.warnings  # whoever is asked, they come out at one place
    return NfsBackend(local, plain.where, allow_local=allow_local)


class NfsBackend:
    """Asks the helper. Never touches the mount."""

    def __init__(self, local: Local, where: str, timeout: float = TIMEOUT, *, allow_local: bool = False) -> None:
        self.where, self.timeout = where, timeout
        self.directory = local.directory
        local.allow_local = self._allow_local = allow_local
        self._local = local
        self.warnings = local.warnings
        self._line: Line | None = None
        self._leases: dict[str, NfsLease] = {}

    def try_acquire(self, grant: Grant, until: float) -> NfsLease | Busy | Done:
        asked, path, table = clock.now(), self._path(grant.name), mounts.table()
        mount = mounts.at(path, table)
        if mount and mount.local_locks and not self._allow_local:
            raise ConfigError(refusal(mount))
        if mount and path == self.directory and not self._allow_local and not mounts.on_network(path, table):
            here = f"{path} lies on {mount.point} ({mount.kind})"  # at boot each machine would run the job
            raise ConfigError(f"{here}, which no other machine shares: is the share not mounted? Mount it, take flock:, or ?allow_local=1")
        answer, envelope = self._ask(grant.name, until, "try_acquire", grant, until, asked=asked)
        if isinstance(answer, (Busy, Done)):
            return answer
        run, previous, mount = answer
        self._leases[grant.run.token] = lease = NfsLease(self, grant, run, previous, mount, envelope)
        return lease

    def abandon(self, grant: Grant, until: float) -> None:
        """Said even to a helper that does not listen: it does so before anything else once it is back."""
        lease = self._leases.pop(grant.run.token, None)
        if lease:
            lease.drop()
        if self._line:
            with suppress(errors.CronlockError):
                self._line.tell("abandon", grant)
                self._line.settle(until)

    def wait(self, name: str, until: float) -> None:
        """The helper polls, each 200 ms; if it gets the lock, the next attempt has it already."""
        until = min(until, clock.now() + SLICE)
        self._ask(name, until + self.timeout, "wait", name, until)

    def status(self, name: str, until: float) -> Status:
        status: Status = self._ask(name, until, "status", name)[0]
        return status

    def names(self, until: float) -> Iterable[str]:
        names: list[str] = self._ask("", until, "names")[0]
        return names

    def history(self, name: str, until: float) -> Sequence[Run]:
        runs: list[Run] = self._ask(name, until, "history", name)[0]
        return runs

    def seize(self, name: str, lost: Run, by: Run, until: float) -> None:
        self._ask(name, until, "seize", name, lost, by)

    def check(self, until: float) -> Iterable[Finding]:
        from cronlock.backends import files_check

        yield from files_check.mount(mounts.on_network(self.directory))
        found: list[Finding] = self._ask("", until, "check")[0]
        yield from found

    def key(self, name: str) -> str:
        return self._local.key(name)

    def close(self) -> None:
        for lease in list(self._leases.values()):
            lease.drop()
        self._leases.clear()
        if self._line:
            with suppress(errors.CronlockError):
                self._line.tell("close")
                self._line.settle(clock.now() + 1.0)
            self._line.close()
            self._line = None

    def forget(self, token: str) -> None:
        self._leases.pop(token, None)

    def _path(self, name: str) -> str:
        return name if name.startswith("/") else self.directory

    def _ask(self, name: str, until: float, what: str, *details: object, asked: float = 0.0) -> tuple[Any, int]:
        asked = asked or clock.now()
        if self._line is None or (self._line.dead and not self._leases):
            self._line = Line(self._local, self.warnings)
        try:
            return self._line.ask(until, what, *details)
        except Silent:
            path = self._path(name)
            if self._line.dead:
                raise Silent(f"{path}: the helper process that touches this mount is gone") from None
            left = max(0.1, until - asked)
            within = durations.show(round(left, 1 if left < 1.5 else None))
            raise Silent(f"{path} does not answer within {within} (stale mount? server down?)") from None

    def ask_for(self, lease: NfsLease, until: float, what: str, *details: object) -> None:
        """On behalf of a lease: once NFSv4's own lease is over, no answer can save it."""
        try:
            self._ask(lease.name, until, what, lease.run.token, *details)
        except Silent:
            known = mounts.lease(lease.mount) if lease.mount else None
            if known and known[1] > 0:
                length, over = durations.show(known[0]), durations.show(known[1])
                raise LeaseLost(f"{self._path(lease.name)}: the NFS server's lease of {length} ran out {over} ago") from None
            raise


class NfsLease:
    watch_fd = None

    def __init__(
        self, backend: NfsBackend, grant: Grant, run: Run, previous: Run | None, mount: mounts.Mount | None, envelope: int
    ) -> None:
        self.name, self.run, self.previous, self.mount = grant.name, run, previous, mount
        known = mounts.lease(mount) if mount else None
        self.valid_for = min(grant.ttl, known[0]) if known else grant.ttl
        self._backend, self._envelope = backend, envelope
        self._over, self._lost = False, ""

    @property
    def fds(self) -> Sequence[int]:
        return (self._envelope,) if self._envelope >= 0 else ()

    def renew(self, until: float) -> None:
        self._must_stand()
        try:
            self._backend.ask_for(self, until, "renew")
        except LeaseLost as error:
            self._lost = str(error)
            raise

    def regain(self, until: float) -> None:
        raise LeaseLost(self._lost or f"{self.name}: the lock on its file is gone")

    def release(self, run: Run, until: float) -> None:
        """Tried again after anything but success and a lost lock; the helper knows what it has already done."""
        self._must_stand()
        self.drop()  # ahead of the helper: whoever closes the last copy waits for the server
        try:
            self._backend.ask_for(self, until, "release", run)
        except LeaseLost:
            self._over = True
            raise
        self._over = True
        self._backend.forget(self.run.token)

    def drop(self) -> None:
        if self._envelope >= 0:
            os.close(self._envelope)
            self._envelope = -1

    def _must_stand(self) -> None:
        if self._over:
            raise LeaseLost(f"{self.name}: the lock was given back")
