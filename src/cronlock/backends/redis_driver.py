"""The long way to a Redis server: redis-py's connection, for TLS and where hiredis is missing. Same manners as resp.Wire."""

from __future__ import annotations

from importlib.util import find_spec

from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import ConnectionError as NotConnected
from redis.exceptions import InvalidResponse, RedisError, ResponseError
from redis.exceptions import TimeoutError as TooLate
from redis.retry import Retry

from cronlock import clock
from cronlock.backends.dial import Broken, in_time, take_back
from cronlock.backends.redis_url import Target
from cronlock.backends.resp import STRAGGLERS, Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

# redis-py 5 and 6 know only the latter, 8 warns of it
SILENT: dict[str, None] = {"driver_info": None} if find_spec("redis.driver_info") else {"lib_name": None, "lib_version": None}
# redis-py cuts the code off an error's text; before 6.x nothing else keeps it
CODES = {"NoPermissionError": "NOPERM", "ReadOnlyError": "READONLY", "OutOfMemoryError": "OOM", "BusyLoadingError": "LOADING",
         "MovedError": "MOVED", "AskError": "ASK", "ClusterDownError": "CLUSTERDOWN", "TryAgainError": "TRYAGAIN",
         "ClusterCrossSlotError": "CROSSSLOT", "MasterDownError": "MASTERDOWN", "AuthenticationError": "NOAUTH"}  # fmt: skip


class Driver:
    """One connection. Log-in is redis.py's, so that redis-py sends no HELLO and no CLIENT SETINFO of its own:
    an ACL user may not run them, and each would be a line in ACL LOG."""

    def __init__(self, target: Target, until: float) -> None:
        quiet: dict[str, Any] = {
            "protocol": 2,
            **SILENT,
            "retry": Retry(NoBackoff(), 0),
            "socket_timeout": max(clock.left(until), 0.001),
        }
        kind: Any
        more: dict[str, Any]
        try:
            if target.path:
                kind, more = UnixDomainSocketConnection, {"path": target.path}
            else:
                share = max(clock.left(until) / 3, 0.001)  # for each address, so that a dead one is not the end
                more = {"host": target.host, "port": target.port, "socket_keepalive": True, "socket_connect_timeout": share}
                kind, more = (SSLConnection, more | target.tls) if target.scheme in ("rediss", "valkeys") else (Connection, more)
            self._link = kind(**quiet, **more)
            # a port without TLS waits in silence for the end of what it takes for a line: there is no answer to tell it by
            doubt = ", if that is a port for TLS" if kind is SSLConnection else ""
            in_time(self._link.connect, until, f"connecting to {target.where}{doubt}")
        except (RedisError, OSError) as error:
            raise Broken(_line(error)) from None
        self.fd: int = self._link._sock.fileno()  # no public way to the socket, in any version

    def close(self) -> None:
        self._link.disconnect()

    def stale(self) -> bool:
        try:
            return bool(self._link.can_read(0))
        except (RedisError, OSError):
            return True

    def ask(self, commands: Sequence[Sequence[Any]], until: float, expect: int = 0) -> list[Any]:
        replies: list[Any] = []
        try:
            self._link._sock.settimeout(max(clock.left(until), 0.001))
            if commands:
                self._link.send_packed_command(self._link.pack_commands([tuple(c) for c in commands]), check_health=False)
            while len(replies) < (expect or len(commands)) and self._link._sock:  # it hangs up after some refusals
                self._link._sock.settimeout(max(clock.left(until), 0.001))
                try:
                    replies.append(_within(self._link.read_response()))
                except RedisError as error:
                    # a refused log-in is a ConnectionError there
                    if not isinstance(error, ResponseError) and type(error).__name__ not in CODES:
                        raise
                    replies.append(_refusal(error))
                if len(replies) == 1 and (replies[0] is None or isinstance(replies[0], Refusal)):
                    until = min(until, clock.now() + STRAGGLERS)
        except (RedisError, OSError, TypeError) as error:  # TypeError: see resp.Wire.ask
            self._give_up()
            if not replies:
                raise Broken("no answer in time" if isinstance(error, TooLate) else _line(error)) from None
        except BaseException:
            self._give_up()
            raise
        return replies

    def _give_up(self) -> None:
        if self._link._sock:
            take_back(self._link._sock)
        self.close()


def _within(reply: Any) -> Any:
    return [_refusal(r) if isinstance(r, ResponseError) else r for r in reply] if isinstance(reply, list) else reply


def _refusal(error: Exception) -> Refusal:
    code = getattr(error, "status_code", None) or CODES.get(type(error).__name__, "")
    text = str(error)
    return Refusal(text if not code or text.startswith(code) else f"{code} {text}")


def _line(error: Exception) -> str:
    if isinstance(error, InvalidResponse):
        return f"not an answer of Redis: {error}"
    text = " ".join(str(error).split())
    return text if isinstance(error, (NotConnected, OSError)) else f"{type(error).__name__}: {text}"
