"""The last bytes of what the command prints, for --heartbeat-output; everything goes on to where it was meant to go.

Only with that option does the command write into pipes. A thread a pipe copies them at once and unchanged: it waits for a
slow reader as the command itself would have, so no byte is lost, and the loop that renews the lease never waits. Memory
is SIZE, whatever the command prints. When the command has ended, what is in the pipes then is still copied; a daemon that
keeps them open is not waited for.
"""

from __future__ import annotations

import errno
import os
import select
from _thread import allocate_lock  # threading's own; the rest of that comes when the command runs

from cronlock import clock
from cronlock.lean import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading

CHUNK = 65536  # what a pipe holds
LARGEST = 1 << 20  # what one holds that a command has enlarged, without being root (pipe(7))
DRAIN = 1.0  # seconds that what is left in the pipes may take before the final ping is sent


class Ring:
    """The last `size` bytes that were added, in their order."""

    def __init__(self, size: int) -> None:
        self._ring = bytearray(size)  # touched, and so paid for, as it fills
        self._lock = allocate_lock()
        self._total = 0
        self._closed = False

    def __len__(self) -> int:
        return min(self._total, len(self._ring))

    def add(self, chunk: bytes) -> None:
        with self._lock:
            if self._closed:
                return
            size = len(self._ring)
            kept = memoryview(chunk)[-size:]
            at = (self._total + len(chunk) - len(kept)) % size
            first = min(len(kept), size - at)
            self._ring[at : at + first] = kept[:first]
            self._ring[: len(kept) - first] = kept[first:]
            self._total += len(chunk)

    def close(self) -> None:
        """Nothing is added any more: `parts` may be sent."""
        with self._lock:
            self._closed = True

    def parts(self, most: int | None = None) -> tuple[memoryview, ...]:
        """The last bytes, at most so many, in two pieces or fewer, not copied."""
        size, length = len(self._ring), len(self) if most is None else max(0, min(most, len(self)))
        start = (self._total - length) % size
        view = memoryview(self._ring)
        first = min(length, size - start)
        return tuple(part for part in (view[start : start + first], view[: length - first]) if part)

    def last(self, most: int) -> bytes:
        return b"".join(self.parts(most))


class Tail:
    """Pipes for the command's stdout and stderr, and what copies them."""

    def __init__(self, size: int) -> None:
        self.ring = Ring(size)
        self._copiers: list[threading.Thread] = []
        self._pipes: list[tuple[int, int, int]] = []  # read end, write end, whose place it takes
        self._stop = (-1, -1)

    def open(self) -> tuple[tuple[int, int], ...]:
        """(write end, descriptor of the command), for the guard's fork. A stream that is closed stays closed; two that are
        one file, as under cron, get one pipe, so that their order stays."""
        self._stop = os.pipe()
        places = [fd for fd in (1, 2) if os.get_inheritable(fd)]
        joint = len(places) == 2 and os.path.samestat(os.fstat(1), os.fstat(2))
        for fd in places[:1] if joint else places:
            self._pipes.append((*os.pipe(), fd))
        return tuple((writes, place) for _, writes, fd in self._pipes for place in (places if joint else [fd]))

    def start(self) -> None:
        """After the fork: only the command has the write ends now."""
        import threading

        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # threads inherit it: signals are the loop's
        try:
            for reads, writes, fd in self._pipes:
                os.close(writes)
                self._copiers.append(threading.Thread(target=self._copy, args=(reads, fd), daemon=True))
                self._copiers[-1].start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def drain(self) -> None:
        """The command has ended: copy what it has left in the pipes, as far as the reader takes it within a second."""
        os.close(self._stop[1])
        until = clock.now() + DRAIN
        for copier in self._copiers:
            copier.join(clock.left(until))
        self.ring.close()

    def settle(self) -> None:
        """Whoever reads our output is slow: wait for them, as the command would have had to. A signal ends it."""
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            if any(copier.is_alive() for copier in self._copiers) and signal.getsignal(signum) is not signal.SIG_IGN:
                signal.signal(signum, signal.SIG_DFL)
        for copier in self._copiers:
            copier.join()

    def _copy(self, reads: int, to: int) -> None:
        poll = select.poll()
        poll.register(reads, select.POLLIN)
        poll.register(self._stop[0], select.POLLIN)
        try:
            while True:
                ready = {fd for fd, _ in poll.poll()}
                stopped = self._stop[0] in ready
                if reads in ready:
                    chunk = os.read(reads, LARGEST if stopped else CHUNK)
                    if not chunk:
                        return
                    self.ring.add(chunk)
                    _write(to, chunk)
                if stopped:
                    return
        except BrokenPipeError:
            return  # our reader is gone: closing the pipe tells the command so
        finally:
            os.close(reads)


def _write(fd: int, chunk: bytes) -> None:
    """All of it, also where the caller's descriptor does not block. BrokenPipeError if nobody reads."""
    view = memoryview(chunk)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            waiting = select.poll()
            waiting.register(fd, select.POLLOUT)
            waiting.poll()
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise
            return  # a full disk, a terminal that is gone: this much is lost, as it would be for most programs
