"""The guard keeps the command: it is its parent, passes signals on, and stops the whole tree when the lease runs out.

A process of its own, so that a cronlock that is frozen, stuck or SIGKILLed never leaves work going without a lock.
It knows nothing of backends; what carries the lock at the kernel or the server, it holds as copies of descriptors
until the tree is gone. The messages between the two, one packet each:

    cronlock -> guard                                   guard -> cronlock
    valid T     the command may run until T             started PID
    pass N      the signal N came for the command       failed ERRNO      it could not be started
    stop S      TERM to the tree now, KILL after S s    ended STATUS      the direct child is gone (wait status)
    fds         (descriptors attached) hold these       stopping WHY      the tree is being ended: signal, told, expired, orphaned
                                                        stuck PID…        not gone 2 s after KILL
                                                        gone              stopped, and nothing of the tree is left

Each `stop`, and each `pass` of a TERM, is answered with `stopping`: a guard that does not is taken for frozen. End of file is
a message too: the guard stops the tree when cronlock is gone; cronlock, a subreaper itself, takes the orphaned command over
when the guard is gone. Both do it with the same `Ward`.
"""

from __future__ import annotations

import errno
import os
import select
import time

from cronlock import clock, exits, tree
from cronlock.errors import CommandError
from cronlock.lean import hold_only, nothing, recv_fds, send_fds, signal, socket, suppress
from cronlock.model import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import NoReturn

Validity = tuple[float, float, float]  # until when (lease clock), grace before it, gap between turns that means suspended
FOREVER: Validity = (float("inf"), 0.0, float("inf"))
HURRY = 1.0  # seconds to KILL after a second TERM
STUCK = 2.0  # seconds after KILL before a survivor is named
TURN = 1.0  # seconds: no loop of ours sleeps longer
STOPPING_TURN = 0.05
VERDICT = 10.0  # seconds a tree that was found past its lease stays frozen for cronlock to say that it still stands
FREEZES = 5  # passes over the tree


class Orders(Value):
    """What the guard is told before it starts the command: after that, cronlock may be frozen any moment."""

    command: tuple[str, ...]
    environ: Mapping[str, str]
    mask: set[int]  # the signals that were blocked when cronlock started
    fds: Sequence[int]  # what carries the lock
    kill_after: float
    validity: Validity
    own_group: bool = True
    streams: Sequence[tuple[int, int]] = ()  # pipes in place of stdout and stderr, for --heartbeat-output


class Ward:
    """The command and its tree, in the process that is its parent."""

    def __init__(self, pid: int, group: int, orders: Orders) -> None:
        self._root, self._pid = os.getpid(), pid
        # The guard leads the group, not the command: setsid(1) as a group's leader would fork and end at once (seen)
        self._group = group if orders.own_group else None  # None: the command shares the terminal's group with us
        self._kill_after = orders.kill_after
        self._last_turn = clock.now()
        self._frozen_at: float | None = None
        self.valid(*orders.validity)
        self._stopping = False
        self._ended = False
        self._kill_at = float("inf")
        self._named: set[int] = set()

    def valid(self, until: float, grace: float, gap: float) -> None:
        self._valid_until, self._stop_at, self._gap = until, until - grace, gap
        if until > (now := clock.now()):
            self._last_turn = now  # whatever was slept through before
            if self._frozen_at is not None:
                self._frozen_at = None
                self._signal_all(signal.SIGCONT)

    def pass_on(self, signum: int) -> list[str]:
        """Once, as itself, to the command's group. TERM means the whole tree, and that it has to end."""
        had_it = self._group is None and signum in signal.sigpending()
        if had_it:  # the terminal, or a kill of the whole group, gave it to the command as well as to us
            signal.sigtimedwait([signum], 0)
        if signum != signal.SIGTERM:
            if self._group is not None:
                tree.send_group(self._group, signum)
            elif not had_it:
                self._signal_all(signum)
            return []
        if self._stopping:
            return self._begin(HURRY, "signal")
        return self.stop(signum, self._kill_after, "signal", to_group=not had_it)

    def stop(self, signum: int, kill_after: float, why: str, *, to_group: bool = True) -> list[str]:
        if self._frozen_at is not None:
            if clock.now() >= self._valid_until:  # no lock, so not one more instruction
                signum, kill_after = signal.SIGKILL, 0.0
            self._frozen_at = None
        if signum != signal.SIGKILL and not self._stopping:  # KILL is for turn(), which is due now
            self._signal_all(signum, to_group=to_group)
            self._signal_all(signal.SIGCONT)  # a stopped process takes its TERM only then
        return self._begin(kill_after, why)

    @property
    def stopping(self) -> bool:
        return self._stopping

    def orphaned(self) -> list[str]:
        """cronlock is gone: nobody renews, so the tree ends now, and before the lease does."""
        return self.stop(signal.SIGTERM, self._kill_after, "orphaned")

    def _freeze(self) -> None:
        if self._frozen_at is None and not self._stopping:
            self._frozen_at = clock.now()
            for _ in range(FREEZES):  # a fork may slip through once
                running = [p for p in tree.descendants(self._root) if p.state not in "Tt"]
                for process in running:
                    tree.send(process, signal.SIGSTOP)
                if not running:
                    break

    def turn(self) -> list[str]:
        """What is due now; the messages it gives rise to."""
        now, said = clock.now(), []
        if now - self._last_turn > self._gap:
            self._freeze()  # suspended or stopped: nothing runs until the other side says that the lease still stands
        self._last_turn = now
        if self._frozen_at is not None and self._frozen_at >= self._stop_at:
            if now > self._frozen_at + VERDICT:  # we woke too late for a renewal, and none was reported since
                said += self.stop(signal.SIGKILL, 0.0, "expired")
        elif now >= self._stop_at and not self._stopping:
            said += self.stop(signal.SIGTERM, self._valid_until - now, "expired")
        if self._stopping and now >= min(self._kill_at, self._valid_until):
            said += self._kill(now)
        return said + self._reap()

    def wait(self) -> float:
        """Seconds until the next turn is due."""
        if self._stopping:
            return min(STOPPING_TURN, max(0.0, self._kill_at - clock.now()) or STOPPING_TURN)
        turn = min(TURN, self._gap / 3)
        return turn if self._frozen_at is not None else max(0.0, min(turn, self._stop_at - clock.now()))

    def ended(self, status: int) -> list[str]:
        self._ended = True
        return [f"ended {status}"]

    def _begin(self, kill_after: float, why: str) -> list[str]:
        self._kill_at = min(self._kill_at, clock.now() + kill_after)
        self._stopping = True
        return [f"stopping {why}"]

    def _kill(self, now: float) -> list[str]:
        alive = tree.descendants(self._root)
        for process in alive:
            tree.send(process, signal.SIGKILL)
        left = {p.pid for p in alive}
        if now > self._kill_at + STUCK and left - self._named:
            self._named |= left
            return ["stuck " + " ".join(str(pid) for pid in sorted(left))]
        return []

    def _reap(self) -> list[str]:
        said = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                if not self._ended:  # nobody knows its pid (see _adopt), so nobody saw its end: no success
                    said += self.ended(signal.SIGKILL)
                if self._stopping:
                    said.append("gone")
                return said
            if not pid:
                return said
            if pid == self._pid:
                said += self.ended(status)

    def _signal_all(self, signum: int, *, to_group: bool = True) -> None:
        """Everybody in the tree once: the group in one call, so that no fork slips through, then who left it.

        The guard is in the group, and deaf to what can be caught: no STOP or KILL goes this way.
        """
        if self._group is not None and to_group:
            tree.send_group(self._group, signum)
        spare = self._group if to_group else os.getpgrp()
        for process in tree.descendants(self._root):
            if process.group != spare:
                tree.send(process, signum)


class Guard:
    """cronlock's side. After `start`, `messages()` tells what happened; `fd` is readable when there is something."""

    def __init__(self, pid: int, sock: socket.socket, orders: Orders) -> None:
        self.pid = pid
        self._sock: socket.socket | None = sock
        self._orders = orders
        self._command = 0
        self._asked: tuple[float, str] | None = None  # that the tree be ended: kill_after, why
        self._orphan: int | None = None  # the command's status, if it came to us before we knew why
        self._ended = self._stopping = self._over = False  # what the guard has said; over: nothing is left for us to do
        self._ward: Ward | None = None  # set once the guard is dead and the command is ours
        self._backlog: list[str] = []

    @classmethod
    def start(cls, orders: Orders) -> Guard:
        """Fork the guard, which starts the command. OSError if there is no room for a process."""
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        tree.become_subreaper()
        orders = orders.but(own_group=not _has_terminal())
        keep = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            pid = os.fork()
            if pid == 0:
                ours.close()
                _guard(its, orders)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, keep)
        its.close()
        ours.setblocking(False)
        return cls(pid, ours, orders)

    @property
    def fd(self) -> int:
        return self._sock.fileno() if self._sock else -1

    def valid(self, until: float, grace: float, gap: float) -> None:
        self._orders = self._orders.but(validity=(until, grace, gap))
        if self._ward:
            self._ward.valid(until, grace, gap)
        else:
            self._send(f"valid {until!r} {grace!r} {gap!r}")

    def pass_on(self, signum: int) -> None:
        if signum == signal.SIGTERM:
            self._asked = self._asked or (self._orders.kill_after, "signal")
        if self._ward:
            self._backlog += self._ward.pass_on(signum)
        else:
            self._send(f"pass {signum}")

    def stop(self, kill_after: float) -> None:
        """TERM to the whole tree now, KILL after so many seconds."""
        self._asked = kill_after, "told"
        if self._ward:
            self._backlog += self._ward.stop(signal.SIGTERM, kill_after, "told")
        elif self._sock:
            self._send(f"stop {kill_after!r}")
        else:
            self._backlog.append("gone")  # with the command, a moment ago

    def hold(self, fds: Sequence[int]) -> None:
        """The lock is carried by other descriptors now."""
        if self._sock and fds:
            with suppress(OSError):
                send_fds(self._sock, b"fds", fds)

    def kill(self) -> None:
        """It does not answer: without it, its command is ours."""
        with suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)

    def messages(self) -> list[str]:
        said, self._backlog = self._backlog, []
        if not self._ward:
            self._reap()
        while self._sock:
            try:
                packet = self._sock.recv(65536)
            except BlockingIOError:
                break
            except ConnectionResetError:
                continue  # it went with a message of ours unread; its last words are still in the queue (seen, once in three)
            except OSError:
                packet = b""
            if packet:
                said.append(packet.decode())
                self._heard(*said[-1].split())
            else:
                self._sock.close()
                self._sock = None
                if not self._over:
                    self._adopt()
                elif self._asked:
                    said.append("gone")  # told to stop when the command had already ended: the guard had left, and answers no more
        if self._ward:
            said += self._backlog  # that it is being stopped, before that it has ended: else the end would count as its own
            self._backlog = []
            said += self._ward.turn()
        return said

    def wait(self) -> float:
        return self._ward.wait() if self._ward else TURN

    def _heard(self, word: str, *numbers: str) -> None:
        if word == "started":
            self._command = int(numbers[0])
        self._ended |= word == "ended"
        self._stopping |= word == "stopping"
        self._over |= word in ("failed", "gone") or (word == "ended" and not self._stopping)

    def _adopt(self) -> None:
        """The guard was killed. Its orphans come to us, and with them the command's status. It is not waited for: it holds
        the lock's file, and the kernel may hang closing that on a dead mount."""
        self._ward = Ward(self._command, self.pid, self._orders)
        if self._asked:
            self._backlog += self._ward.stop(signal.SIGTERM, *self._asked)
        if self._ended:  # only its helpers are left
            self._ward.ended(0)
        elif self._orphan is not None:
            self._backlog += self._ward.ended(self._orphan)
        if not self._command:  # killed before it could say whom it started: nothing may go on that nobody knows
            self._backlog += self._ward.stop(signal.SIGKILL, 0.0, "told")

    def _reap(self) -> None:
        """Strangers, where we are process 1 or a subreaper; and a command that came to us between two looks."""
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                if pid == self._command:
                    self._orphan = status

    def _send(self, text: str) -> None:
        if self._sock:
            with suppress(OSError):  # a dead guard is noticed by messages(); a full buffer by its not answering
                self._sock.send(text.encode())


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _guard(sock: socket.socket, orders: Orders) -> NoReturn:
    """The guard's whole life, in the forked process. Every signal but CHLD stays blocked, so none that can be caught ends it."""
    try:
        try:
            if orders.own_group:
                os.setpgid(0, 0)
            tree.become_subreaper()
            with suppress(OSError), open("/proc/self/comm", "w") as comm:
                comm.write("cronlock-guard")
            null, (bell, ringer) = nothing(), os.pipe()
            for fd in (bell, ringer):
                os.set_blocking(fd, False)
            signal.set_wakeup_fd(ringer, warn_on_full_buffer=False)
            signal.signal(signal.SIGCHLD, lambda *_: None)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
            pid = spawn(orders)
        except OSError as error:
            sock.send(f"failed {error.errno}".encode())
            os._exit(0)
        hold_only(null, {sock.fileno(), bell, ringer, *orders.fds})
        ward = Ward(pid, os.getpid(), orders)
        with suppress(OSError):
            sock.send(f"started {pid}".encode())
        try:
            _attend(sock, bell, ward, list(orders.fds))
        except Exception:  # whatever it is: a guard that ends takes its command along
            ward.stop(signal.SIGKILL, 0.0, "told")
            while "gone" not in ward.turn():
                time.sleep(STOPPING_TURN)
    finally:
        os._exit(0)


def _attend(sock: socket.socket, bell: int, ward: Ward, held: list[int]) -> None:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    poll.register(bell, select.POLLIN)
    while True:
        ready = {fd for fd, _ in poll.poll(ward.wait() * 1000)}
        said: list[str] = []
        if bell in ready:
            with suppress(BlockingIOError):
                os.read(bell, 4096)
        if sock.fileno() in ready:
            try:
                packet, fds = recv_fds(sock, 65536, 16)
            except ConnectionResetError:  # cronlock died with a message of ours unread; the next call says end of file
                continue
            word, *numbers = packet.decode().split() or ["gone"]
            if word == "valid":
                ward.valid(*(float(n) for n in numbers))
            elif word == "pass":
                said += ward.pass_on(int(numbers[0]))
            elif word == "stop":
                said += ward.stop(signal.SIGTERM, float(numbers[0]), "told")
            elif word == "fds":
                for fd in held:
                    os.close(fd)
                held[:] = fds
            else:  # end of file: cronlock is gone, and with it whoever renews the lease
                poll.unregister(sock)
                said += ward.orphaned()
        said += ward.turn()
        for text in said:
            with suppress(OSError):
                sock.send(text.encode())
        if "gone" in said or (not ward.stopping and any(text.startswith("ended") for text in said)):
            return  # daemons that a finished command left are let go: they hold nothing of ours


def spawn(orders: Orders) -> int:
    """Start the command as execvp(3) would: PATH for a bare word, /bin/sh for a script without a first line.

    posix_spawn, because nothing of ours runs between fork and exec. Descriptors are the caller's; ours are close-on-exec.
    """
    ignored = (signal.SIGPIPE, signal.SIGXFSZ)  # by Python at its start
    options: dict[str, object] = {"setsigmask": orders.mask, "setsigdef": ignored}
    if orders.streams:
        options["file_actions"] = [(os.POSIX_SPAWN_DUP2, pipe, fd) for pipe, fd in orders.streams]
    return first_that_starts(orders.command, orders.environ, lambda path, words: os.posix_spawn(path, words, orders.environ, **options))  # type: ignore[arg-type]


def first_that_starts(argv: tuple[str, ...], environ: Mapping[str, str], start: Callable[[str, tuple[str, ...]], int]) -> int:
    """execvp(3)'s search around `start` (a spawn or an exec). OSError with the errno a shell would report."""
    refused: OSError = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    for path in [argv[0]] if "/" in argv[0] else [os.path.join(d or ".", argv[0]) for d in search_path(environ).split(":")]:
        try:
            try:
                return start(path, argv)
            except OSError as error:
                if error.errno != errno.ENOEXEC:
                    raise
                return start("/bin/sh", ("/bin/sh", path, *argv[1:]))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EACCES) or "/" in argv[0]:
                raise
            if error.errno == errno.EACCES and os.path.exists(path):
                refused = error
    raise refused


def search_path(environ: Mapping[str, str]) -> str:
    return environ.get("PATH", "/bin:/usr/bin")


def cannot_start(argv: tuple[str, ...], environ: Mapping[str, str], code: int) -> CommandError:
    """127 or 126, in the words a person needs under cron."""
    if code in (errno.ENOENT, errno.ENOTDIR):
        if "/" in argv[0]:
            why = "it exists, but the interpreter in its first line does not" if os.path.exists(argv[0]) else "no such file"
        elif argv[0].startswith("-"):
            why = "command not found: options stand before the lock's NAME"
        else:
            why = f"command not found in PATH={search_path(environ)} (cron's PATH is short: give the whole path)"
        return CommandError(f"{argv[0]}: {why}", exits.NOT_FOUND)
    return CommandError(f"{argv[0]}: cannot be executed: {os.strerror(code)}", exits.NOT_EXECUTABLE)
