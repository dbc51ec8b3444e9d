"""What a backend is. Three answers and three errors, and nothing else:

- `Lease | Busy | Done` are answers: the store has spoken.
- `BackendError`: unknown. No answer in time, or one that can't be trusted. Never reported as busy.
- `LeaseLost`: known to be gone.
- `UsageError`, `ConfigError`, `PermissionDenied`: a person has to change something.

Waiting policy, jitter, renewal, regaining and deadlines live above the backends. Every `until` is an instant on
the lease clock (`clock.now()`); a method returns or raises by then, whatever the network does.
`cronlock.testing.BackendContract` holds the tests that every backend passes.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Protocol

    from cronlock.model import Busy, Done, Grant, Run, Status
else:
    Protocol = object


class Lease(Protocol):
    """A lock that is held. `run` is the holder with token and fence filled in."""

    run: Run
    valid_for: float
    """Seconds a grant or renewal is good for, counted by the keeper from *before* it asked. inf: as long as `fds` are open."""
    previous: Run | None
    """The run before this one, if nobody saw its end: it goes into the history as `vanished`."""

    @property
    def fds(self) -> Sequence[int]:
        """Descriptors that carry the lock; the guard holds copies until the command's tree is gone. May change on renew."""

    @property
    def watch_fd(self) -> int | None:
        """Readable: something happened to the connection, renew now. None: nothing to watch."""

    def renew(self, until: float) -> None:
        """Extend by the ttl, reconnecting if need be. LeaseLost: gone. BackendError: nobody knows."""

    def regain(self, until: float) -> None:
        """After LeaseLost: take it again, only if the store's last grant is this one or the one it replaced
        (by token, never by number). LeaseLost if not."""

    def release(self, run: Run, until: float) -> None:
        """Let go, if still ours (by token), and write `run`, now with its end, into state and history.
        LeaseLost: it was not ours any more, nothing was touched. BackendError: the ttl will do it."""


class Backend(Protocol):
    """A store of locks. Opening one does no I/O; the first call connects."""

    where: str
    """The store for people and CRONLOCK_RUN_STORE: a URL without password."""
    timeout: float
    """Seconds an attempt may take in all, name look-up included; 10 unless the URL says otherwise."""
    warnings: list[str]
    """What a person should hear of but nothing stops for, such as a broken state that was set aside. The caller empties it."""

    def try_acquire(self, grant: Grant, until: float) -> Lease | Busy | Done:
        """One bounded attempt, the claim of grant.run.label included. Busy only if another holds it now."""

    def abandon(self, grant: Grant, until: float) -> None:
        """Let go of whatever an attempt cut short (a signal, a time-out) may have got, by its token: the lock, the label,
        the min-hold. Its command never started. Never raises."""

    def wait(self, name: str, until: float) -> None:
        """Return when the lock may be free, or at `until`. May return early for no reason; may be a mere sleep."""

    def status(self, name: str, until: float) -> Status:
        """For people; takes and disturbs nothing."""

    def names(self, until: float) -> Iterable[str]:
        """Every name the store has heard of."""

    def history(self, name: str, until: float) -> Sequence[Run]:
        """The last runs, oldest first, at most 100."""

    def seize(self, name: str, lost: Run, by: Run, until: float) -> None:
        """For an operator: the grant of `lost` (the holder, with the end that is written for it into state and history) is
        no longer the last one, `by` is: the holder's next look says LeaseLost, and it can't regain. Nobody else is let in
        before that holder's lease is over. LeaseLost: that run does not hold it any more, nothing was touched."""

    def key(self, name: str) -> str:
        """The same lock for people with the store's own tools: a command line or statement to paste. No I/O."""

    # May have, for `cronlockctl check`:
    # def check(self, until: float) -> Iterable[Finding]: what is fit for production here and what is not. Reads, and tries
    #     what it must try on a key or file of its own, never on a lock.

    def close(self) -> None:
        """Idempotent; never raises. Descriptors that a lease handed out stay usable in processes that hold copies."""
