"""Signals, taken over before the lock and passed on once as themselves.

Before the command runs, one ends the attempt: `interruptible()` lets it break out of a driver's blocking call.
Afterwards each goes to `deliver` at once, from the handler, so that a renewal which hangs does not hold it up.
What was ignored at the start (nohup, a shell's `&`) stays ignored.
"""

from __future__ import annotations

import os

from cronlock.errors import Interrupted
from cronlock.lean import signal, suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn, Self

TAKEN = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


class Signals:
    """A context: inside it the signals are ours. `fd` is readable when one, or a child's end, has come."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self.raising = False
        self._deliver: Callable[[int], None] | None = None
        self._bell, self._ringer = os.pipe()
        for fd in (self._bell, self._ringer):
            os.set_blocking(fd, False)

    def __enter__(self) -> Self:
        signal.set_wakeup_fd(self._ringer, warn_on_full_buffer=False)
        for signum in TAKEN:
            if signal.getsignal(signum) != signal.SIG_IGN:
                signal.signal(signum, self._handle)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # even if ignored at start: a child's status must not get lost
        # somebody may have started us with them blocked; the command gets that mask back
        self.mask = {int(s) for s in signal.pthread_sigmask(signal.SIG_UNBLOCK, (*TAKEN, signal.SIGCHLD, signal.SIGALRM))}
        return self

    def __exit__(self, *_: object) -> None:
        """They stay ours until the process ends: one that comes now must not cut the last words short."""

    def give_back(self) -> None:
        """As they were at the start, for a program that takes this process over. What came since the last look comes again."""
        for signum in (*TAKEN, signal.SIGPIPE, signal.SIGXFSZ):  # an exec does the rest
            if signal.getsignal(signum) != signal.SIG_IGN or signum in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)
        for number in self.received:
            signal.raise_signal(number)

    @property
    def fd(self) -> int:
        return self._bell

    def clear(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._bell, 4096)

    def deliver_to(self, deliver: Callable[[int], None]) -> None:
        """From now on, and whatever came since the last look. None twice: a second TERM means hurry."""
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, TAKEN)
        self._deliver = deliver
        for signum in self.received:
            deliver(signum)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def interruptible(self) -> Interruptible:
        """A context: within, a signal raises Interrupted, also one that came just before."""
        return Interruptible(self)

    def interrupt(self) -> NoReturn:
        """Once: what is on its way out, at whatever line, is not interrupted again."""
        self.raising = False
        raise Interrupted(self.received[0])

    def _handle(self, signum: int, _frame: object) -> None:
        self.received.append(signum)
        if self._deliver:
            self._deliver(signum)
        elif self.raising:
            self.interrupt()


class Interruptible:
    def __init__(self, signals: Signals) -> None:
        self._signals = signals

    def __enter__(self) -> None:
        self._signals.raising = True
        if self._signals.received:
            self._signals.interrupt()

    def __exit__(self, *_: object) -> None:
        self._signals.raising = False
