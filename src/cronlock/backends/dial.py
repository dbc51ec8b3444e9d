"""A connected socket by a deadline: name look-up, every address, nothing that a dead host could stretch."""

from __future__ import annotations

import _socket
import _thread
import errno
import os
import select
import sys

from cronlock import clock
from cronlock.errors import BackendError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    Address = tuple[int, Any]  # family, sockaddr


class Broken(BackendError):
    """The connection failed, not the server's answer: another connection may still get one."""


def in_time(work: Callable[[], Any], until: float, what: str) -> Any:
    """What `work` returns. In a thread, because getaddrinfo(3) knows no time-out and no signal ends it."""
    box: list[tuple[Any, Exception | None]] = []
    ended = _thread.allocate_lock()
    ended.acquire()

    def run() -> None:
        try:
            box.append((work(), None))
        except Exception as error:
            box.append((None, error))
        finally:
            ended.release()

    _thread.start_new_thread(run, ())
    if not ended.acquire(timeout=min(clock.left(until), 3600.0)):
        raise Broken(f"no answer in time ({what})")
    answer, error = box[0]
    if error:
        raise error
    return answer


def addresses(host: str, port: int, until: float) -> list[Address]:
    """All of the host's. As bytes, or Python would import its idna codec (tables of 1 MiB) for a plain ASCII name."""
    try:
        name = host.encode("ascii")
    except UnicodeEncodeError:
        try:
            name = host.encode("idna")
        except UnicodeError:
            raise BackendError(f"can't look up {host!r}: no host can have this name") from None

    def look_up(flags: int = 0) -> list[Address]:
        return [(f, a) for f, _, _, _, a in _socket.getaddrinfo(name, port, 0, _socket.SOCK_STREAM, 0, flags)]

    try:
        return look_up(_socket.AI_NUMERICHOST)
    except _socket.gaierror:
        pass
    try:
        return in_time(look_up, until, f"looking up {host}")  # type: ignore[no-any-return]
    except OSError as error:
        raise BackendError(f"can't look up {host}: {error.strerror}") from None


def ready(fd: int, until: float, mask: int = select.POLLIN) -> bool:
    """True once the descriptor is ready; False at `until`. Signal handlers run meanwhile and may raise."""
    poll = select.poll()
    poll.register(fd, mask)
    return bool(poll.poll(min(clock.left(until), 3600.0) * 1000))


def take_back(sock: _socket.socket) -> None:
    """What has not arrived yet is not to arrive any more, once this socket is closed. Otherwise the kernel sends it again
    when the network is back, and the store grants to nobody what nobody waits for any more."""
    sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_LINGER, (1).to_bytes(4, sys.byteorder) + bytes(4))


def dial(found: Sequence[Address], until: float) -> _socket.socket:
    """A connected socket to the first address that answers; each gets its share of the time that is left."""
    reasons = []
    for i, (family, address) in enumerate(found):
        share = clock.now() + clock.left(until) / (len(found) - i)
        sock = _socket.socket(family, _socket.SOCK_STREAM)  # not inherited by the command (PEP 446)
        try:
            sock.setblocking(False)
            while (code := sock.connect_ex(address)) == errno.EAGAIN and clock.left(share):
                select.poll().poll(10)  # a Unix socket's backlog is full: a thousand start in one second
            if code == errno.EINPROGRESS:
                answered = ready(sock.fileno(), share, select.POLLOUT)
                code = sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_ERROR) if answered else errno.ETIMEDOUT
            if not code:
                if family != _socket.AF_UNIX:
                    sock.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
                    sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_KEEPALIVE, 1)
                return sock
        except BaseException:
            sock.close()
            raise
        sock.close()
        reasons.append(f"{address if isinstance(address, str) else address[0]}: {os.strerror(code)}")
    raise Broken("can't connect (" + "; ".join(dict.fromkeys(reasons)) + ")")
