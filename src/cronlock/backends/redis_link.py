"""One Redis server: a connection that is made when needed, replaced when broken, logged in; refusals in words."""

from __future__ import annotations

import _socket

from cronlock import clock
from cronlock.backends import resp
from cronlock.backends.dial import Broken, addresses, dial
from cronlock.backends.redis_url import Target
from cronlock.backends.resp import Refusal
from cronlock.errors import BackendError, PermissionDenied

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cronlock.backends.dial import Address
    from cronlock.backends.redis_driver import Driver

    Link = resp.Wire | Driver

MINIMAL = (
    "~PREFIX* +set +get +del +pexpire +eval (docs: also +time +pttl +rpush +ltrim +lrange +publish +subscribe +scan; "
    "cronlockctl release: +watch +unwatch +multi +exec)"
)
CLUSTER = "a Redis Cluster answers here, which cronlock does not route: name a server that is not part of one"
ADVICE = {
    "READONLY": "this server is a replica: name the primary, or an address that follows it",
    "MASTERDOWN": "this server is a replica that lost its primary: name the primary",
    "OOM": "the server is out of memory: raise maxmemory, and keep locks on a server that is no cache",
    "NOPERM": f"the user may not do this: ACL SETUSER … {MINIMAL}",
    "NOAUTH": "the server wants a password: redis://USER:PASSWORD@HOST or ?password_file=",
    "WRONGPASS": "user name or password is wrong",
    "DENIED": "the server lets in nobody from other hosts (protected mode)",
    "LOADING": "the server is still reading its data",
    "MISCONF": "the server can't write its data to disk and refuses changes: see its log",
    "NOREPLICAS": "the server misses its replicas and refuses changes",
    "BUSY": "the server is stuck in somebody's script (SCRIPT KILL ends it)",
    "WRONGTYPE": "another program's key has this name: choose another ?prefix=",
    "MOVED": CLUSTER, "ASK": CLUSTER, "CLUSTERDOWN": CLUSTER, "CROSSSLOT": CLUSTER, "TRYAGAIN": CLUSTER,
}  # fmt: skip
DEMOTED = ("READONLY", "MASTERDOWN")
SENTINEL = "a Sentinel seems to answer here, which keeps no locks: name the primary that it watches, or an address that follows it"
DENIALS = ("NOPERM", "NOAUTH", "WRONGPASS", "DENIED")


class Server:
    def __init__(self, target: Target, driver: bool = False) -> None:
        self.where, self._target = target.where, target
        self._long = driver or target.scheme in ("rediss", "valkeys") or not resp.AVAILABLE
        self._found: list[Address] = []  # asked for again, since a failover may change it; kept, lest a renewal fail with the name server
        self._secret = ""
        self._link: Link | None = None

    @property
    def fd(self) -> int | None:
        return self._link.fd if self._link else None

    def close(self) -> None:
        if self._link:
            self._link.close()
        self._link = None

    def ask(self, commands: list[Any], until: float, full: bool = True) -> list[Any]:
        """Replies, refusals as values; not `full`: possibly fewer than commands. A connection that broke is replaced once:
        every command of ours may be said twice, and knows its own token again. One that was kept has half of the time,
        or a dead one would use up all of it. BackendError: no answer."""
        for again in (True, False):
            if self._link and self._link.stale():
                self.close()
            kept = self._link
            try:
                link = self._link = kept or self.open(until)
                replies = link.ask(commands, until - clock.left(until) / 2 if kept else until)
            except Broken as error:
                self.close()
                if not again or not clock.left(until):
                    raise BackendError(f"{self.where}: {error}") from None
                continue
            except BaseException:
                self.close()
                raise
            if len(replies) < len(commands):
                self.close()
                if full:
                    for reply in replies:
                        self.checked(reply)
                    raise BackendError(f"{self.where}: the answer was cut off")
            return replies
        raise AssertionError

    def plain(self, commands: list[Any], until: float) -> list[Any]:
        return [self.checked(reply) for reply in self.ask(commands, until)]

    def open(self, until: float) -> Link:
        """Another connection, logged in. BackendError: can't connect, which nobody should try twice."""
        self._secret, user, db = self._target.secret(), self._target.username, self._target.db
        try:
            link = self._dial(until)
        except Broken as error:
            raise BackendError(f"{self.where}: {error}") from None
        # Log-in has a trip of its own: in one go with the claim, a wrong password or database would not stop the
        # commands behind it, and they would lock as the default user, or in database 0.
        login: list[Any] = [("AUTH", *filter(None, (user,)), self._secret.encode("utf-8", "surrogateescape"))] if self._secret else []
        login += [("SELECT", db)] if db else []
        try:
            replies = link.ask(login, until) if login else []
            for command, reply in zip(login, replies, strict=False):
                self.checked(reply, login=command[0] == "AUTH")
            if replies != [b"OK"] * len(login):
                raise Broken("AUTH was not answered with OK")
        except BaseException:
            link.close()
            raise
        return link

    def _dial(self, until: float) -> Link:
        target = self._target
        if not clock.left(until):
            raise Broken("no time left to connect")
        if self._long:
            from cronlock.backends.redis_driver import Driver

            return Driver(target, until)
        if target.path:
            return resp.Wire(dial([(_socket.AF_UNIX, target.path)], until))
        limit = min(1.0, clock.left(until) / 4)
        try:
            self._found = addresses(target.host, target.port, clock.now() + limit if self._found else until)
        except BackendError:
            if not self._found:
                raise
        return resp.Wire(dial(self._found, until))

    def checked(self, reply: Any, login: bool = False) -> Any:
        """The reply, if it is none of the server's refusals; those in words, each with what to do."""
        if not isinstance(reply, Refusal):
            return reply
        # "unknown command 'AUTH', with args beginning with: …" repeats the password
        text = " ".join(str(reply).partition(", with args")[0].split())[:160]
        if self._secret:
            text = text.replace(self._secret, "***")
        code = text.partition(" ")[0]
        if code in DEMOTED:
            self.close()  # it would stay open, and the address may lead to the new primary by now
        kind = PermissionDenied if code in DENIALS or (login and code not in ADVICE) else BackendError
        advice = SENTINEL if "unknown command 'SET'" in text else ADVICE.get(code, "log-in refused" if login else "the server refused")
        raise kind(f"{self.where}: {advice} (it said: {text})")
