"""The short way to a Redis server: a bare socket and redis-py's own parser (hiredis).

redis-py costs 14.5 times a bare interpreter's start, `socket` 1.7; `_socket` and hiredis nothing measurable.
"""

from __future__ import annotations

import select

from cronlock import clock
from cronlock.backends.dial import Broken, ready, take_back

try:
    import hiredis
except ImportError:  # redis.py then takes redis-py for all
    hiredis = None  # type: ignore[assignment]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket
    from collections.abc import Sequence
    from typing import Any

AVAILABLE = hiredis is not None
STRAGGLERS = 1.0  # seconds for the other replies of a pipeline once its first is an error or nil


class Refusal(Exception):
    """An error reply of the server, as a value among the replies."""


class Wire:
    """A connection that asks, several commands in one go, and waits for the answers. After an error, throw it away."""

    def __init__(self, sock: socket) -> None:
        self._sock, self._reader, self.fd = sock, hiredis.Reader(protocolError=Broken, replyError=Refusal), sock.fileno()
        self.close = sock.close

    def stale(self) -> bool:
        """Nothing was asked: what can be read now is the server's good-bye, or an answer too many."""
        return self._reader.has_data() or ready(self.fd, 0.0)

    def ask(self, commands: Sequence[Sequence[Any]], until: float, expect: int = 0) -> list[Any]:
        """A reply for each command; fewer if the server fell silent after the first. Broken: none, or not Redis."""
        out = b"".join(hiredis.pack_command(tuple(command)) for command in commands)
        replies: list[Any] = []
        count = expect or len(commands)
        try:
            while len(replies) < count:
                try:
                    reply = self._reader.gets()
                except TypeError:  # a map whose key is a list (seen: hiredis 3)
                    raise Broken("not an answer of Redis") from None
                if reply is not False:
                    replies.append(reply)
                    if len(replies) == 1 and (reply is None or isinstance(reply, Refusal)):
                        until = min(until, clock.now() + STRAGGLERS)
                    continue
                if not ready(self.fd, until, select.POLLIN | (select.POLLOUT if out else 0)):
                    raise Broken("no answer in time")
                try:
                    out = out[self._sock.send(out) :] if out else out
                    data = self._sock.recv(65536)
                except BlockingIOError:
                    continue
                if not data:
                    raise Broken("the server closed the connection without an answer (does it want TLS: rediss://?)")
                self._reader.feed(data)
        except (OSError, Broken) as error:
            self._give_up()
            if not replies:
                raise error if isinstance(error, Broken) else Broken(error.strerror or str(error)) from None
        except BaseException:
            self._give_up()  # a signal in the middle: what comes next would answer the wrong question
            raise
        return replies

    def _give_up(self) -> None:
        if self._sock.fileno() >= 0:
            take_back(self._sock)
        self.close()
