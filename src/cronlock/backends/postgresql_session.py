"""One connection to PostgreSQL under one deadline: all that is needed of a driver, so that it can be another one."""

from __future__ import annotations

import os
import select
import time
from itertools import zip_longest

from cronlock.backends import dial
from cronlock.backends.dial import Broken
from cronlock.backends.urls import password_from
from cronlock.clock import left, now
from cronlock.errors import BackendError, ConfigError, PermissionDenied
from cronlock.lean import nothing, socket, suppress

try:
    from cronlock.backends.libpq import Conninfo, OperationalError, PGconn
except Exception:  # no libpq to be seen, or not the one that was written for: psycopg knows where its own is, and how to use it
    from psycopg import OperationalError  # type: ignore[assignment]
    from psycopg.pq import Conninfo, PGconn  # type: ignore[assignment]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from cronlock.backends.libpq import PGresult

    Row = Sequence[str | None]
    Params = Callable[["Session"], Sequence[object]]  # a question's, once it is known who is asked
    Target = tuple[str, str, str]  # host, hostaddr, port

RETRIED = ("too many c", "connection slots", "starting up", "shutting down", "not yet accepting", "recovery mode", "no more connections")
REFUSED = (
    *("authentication failed", "no password supplied", "no pg_hba.conf entry", "pg_hba.conf rejects", "is not permitted to log in"),
    *("permission denied for database", "requires a valid client certificate", "no such user"),
)
OLDEST = 120000  # it knows `with … as materialized`
_STANDBY = "{} is a standby (read-only), and its locks exclude nobody: name the primary"
_READ_ONLY = (
    "{} writes nothing: a standby (name the primary), or default_transaction_read_only is on"  # some services set it on a full disk
)
# of libpq's enums: ConnStatus, PollingStatus, ExecStatus, DiagnosticField
BAD, READING, CONNECTED, COMMAND_OK, TUPLES_OK, SQLSTATE, PRIMARY = 1, 1, 3, 1, 2, ord("C"), ord("M")


class Silent(Broken):
    """Nothing came over it in time."""


class Refused(Exception):
    """The server's own error: `code` is its SQLSTATE, empty for a log-in where psycopg is asked, or a pooler that knows none."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Session:
    """One connection, and all that is needed of a driver: connect, ask, close.

    libpq's own non-blocking calls under one poll(): its connect_timeout knows whole seconds from 2 up, and its queries
    none. A signal handler that raises ends every wait.
    `fd` is a copy of the socket: libpq closes its own when it meets an error, and then nobody could shut down the
    copies that another process holds.
    """

    def __init__(self, conn: PGconn, target: Target) -> None:
        self._conn = conn
        self.target = target
        self.fd = os.dup(conn.socket)
        self.pid, self.version = conn.backend_pid, conn.server_version
        self.standby = conn.parameter_status(b"in_hot_standby") == b"on"  # told since 14
        self.alive = True
        self.key = ""  # the name whose advisory lock it has
        self.owes = False  # a signal broke in on a question, and its answer is still to come

    @classmethod
    def connect(cls, conninfo: str, target: Target, until: float) -> Session:
        """Broken: not there, or no answer by `until`. Refused: it is, and said no."""
        conn = PGconn.connect_start(conninfo.encode())
        try:
            events = select.POLLOUT
            while conn.status != BAD:
                _ready(conn.socket, events, until)
                state = conn.connect_poll()
                if state == CONNECTED:
                    conn.nonblocking = 1
                    return cls(conn, target)
                events = select.POLLIN if state == READING else select.POLLOUT
            text = conn.error_message.decode(errors="replace")
        except BaseException:
            conn.finish()
            raise
        conn.finish()
        code, text = told(text)
        raise Refused(code, text) if code or "FATAL" in text or "no password" in text or misread(text) else Broken(text)

    def ask(self, sql: str, params: Sequence[object], until: float) -> Sequence[Row]:
        """The rows, as text. Broken: no answer by `until`; the connection is closed, and what was asked may have been done.
        After a signal that raised, the answer is owed: hear() it, or close."""
        self.owes = True
        result = self._hear(until, sql.encode(), [None if p is None else str(p).encode("utf-8", "backslashreplace") for p in params])
        if result is not None and result.status in (TUPLES_OK, COMMAND_OK):
            cells = ([result.get_value(y, x) for x in range(result.nfields)] for y in range(result.ntuples))
            return [[None if cell is None else cell.decode() for cell in row] for row in cells]
        code = ((result and result.error_field(SQLSTATE)) or b"").decode()
        said = (result and result.error_field(PRIMARY)) or self._conn.error_message
        text = told(said.decode(errors="replace"))[1]
        if not code or code[:2] == "08" or code in ("57P01", "57P02", "57P03", "57P05"):
            self.close(shut=True)
            raise Broken(text)
        raise Refused(code, text)

    def hear(self, until: float) -> None:
        """What is asked after this is done after what was asked before."""
        self._hear(until)

    def _hear(self, until: float, *question: Any) -> PGresult | None:
        conn, result = self._conn, None
        try:
            if question:
                conn.send_query_params(*question)
            while conn.flush():
                _ready(self.fd, select.POLLIN | select.POLLOUT, until)
                conn.consume_input()
            while True:
                while conn.is_busy():
                    _ready(self.fd, select.POLLIN, until)
                    conn.consume_input()
                if (part := conn.get_result()) is None:
                    break
                result = part
        except OperationalError as error:
            self.close(shut=True)
            raise Broken(told(str(error))[1]) from None
        except Silent:
            self.close(shut=True)
            raise
        self.owes = False
        return result

    def close(self, *, shut: bool = False, quiet: bool = False) -> None:
        """Say goodbye. `shut`: whatever other processes hold copies, the server is to see the end of it.
        `quiet`: the server is to see nothing, for those copies still carry a lock."""
        if not self.alive:
            return
        self.alive = self.owes = False
        if shut:
            sock = socket.socket(fileno=self.fd)
            with suppress(OSError):  # the other end was faster
                dial.take_back(sock)
                sock.shutdown(socket.SHUT_RDWR)
            sock.detach()
        if quiet and self._conn.status != BAD:
            null = nothing()
            os.dup2(null, self._conn.socket, inheritable=False)  # there goes libpq's goodbye
            os.close(null)
        self._conn.finish()
        os.close(self.fd)


def told(text: str) -> tuple[str, str]:
    """The line that says it, for with sslmode=prefer libpq reports two attempts, and hints below; and the SQLSTATE that
    stands in it when it came by libpq.py: `… failed: FATAL:  28P01: password …`."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["the connection was closed"]
    said = next((line for line in lines if "FATAL" in line), lines[0])
    head, _, rest = said.partition(":  ")
    code, colon, sentence = rest.partition(": ")
    return (code, f"{head}:  {sentence}") if colon and len(code) == 5 and code.isalnum() and code == code.upper() else ("", said)


def misread(text: str) -> bool:
    """Whether it is a parameter that libpq can't read, such as `invalid sslmode value: "no"`, and the server was not asked."""
    return "invalid" in text and ("value" in text or "port number" in text)


def conninfo(known: Mapping[str, str]) -> str:
    return " ".join("{}='{}'".format(k, v.replace("\\", r"\\").replace("'", r"\'")) for k, v in known.items())


def _ready(fd: int, events: int, until: float) -> None:
    if not dial.ready(fd, until, events):
        raise Silent("no answer in time")


class Servers:
    """Where the servers are, as the URL, the environment and the service file say, and how to get in."""

    def __init__(self, uri: str, password_file: str) -> None:
        """ValueError: libpq can't read it."""
        try:
            parsed = Conninfo.parse(uri.encode())
        except OperationalError as error:  # its text quotes the URL, password included; of a query what is behind a raw & in one
            _, text = told(str(error))
            fit = "query parameter" in text and "password=" not in uri
            raise ValueError(text if fit else text.partition(":")[0].partition(' in "')[0]) from None
        self._known = {o.keyword.decode(): o.val.decode() for o in parsed if o.val}
        self._password_file = password_file
        environ = {k: os.environ.get(f"PG{k.upper()}", "") for k in ("host", "port")} if "service" not in self._known else {}
        self.where = shown({**environ, **self._known})
        self.named = any(k in self._known for k in ("host", "hostaddr", "service", "dbname")) or any(
            os.environ.get(k) for k in ("PGHOST", "PGHOSTADDR", "PGSERVICE")
        )
        self._hosts: Sequence[Target] = ()
        self._addresses: dict[str, Sequence[str]] = {}  # kept: a renewal must not depend on the name server

    def open(self, name: str, until: float, standby: Iterable[Target] = ()) -> Session:
        """A connection to the first server that answers and can be written to."""
        before: Sequence[str] = ()
        pause = 0.1
        while True:
            asked = now()
            trouble: list[str] = [_READ_ONLY.format(shown({"host": host, "port": port})) for host, _, port in standby]
            full = False
            targets = [t for t in self._resolve(until, trouble) if t not in standby]
            for i, target in enumerate(targets):
                try:
                    session = Session.connect(self._text(name, target), target, now() + left(until) / (len(targets) - i))
                except Refused as error:
                    full |= self._refused(error.code, str(error))
                    trouble.append(str(error))
                except Broken as error:
                    trouble.append(f"{shown({'host': target[0], 'port': target[2]})}: {error}" if isinstance(error, Silent) else str(error))
                else:
                    if 0 < session.version < OLDEST:  # 0: a pooler that does not tell
                        session.close()
                        raise ConfigError(
                            f"{self.where}: PostgreSQL {session.version // 10000} is too old: cronlock needs {OLDEST // 10000}"
                        )
                    if not session.standby:
                        return session
                    session.close()
                    trouble.append(_STANDBY.format(shown({"host": target[0], "port": target[2]})))
            if not full or left(until) < 0.05:
                raise BackendError(f"{self.where}: {'; '.join(dict.fromkeys(before or trouble))}")
            before = before or trouble
            # A full server is not helped by being asked more often: whoever asks takes a tenth of the time at most, and the more
            # of it the nearer the end. Of a thousand on two processors all get in that way; asked each second it serves nobody.
            pause = max(min(2 * pause, 2.0), 10 * (now() - asked))
            time.sleep(jitter(0.5, 1) * min(pause, left(until) / 2))

    def _refused(self, code: str, text: str) -> bool:
        """Is it worth trying again? Errors that a person has to mend are raised. The words are for psycopg and poolers,
        which tell no SQLSTATE."""
        if code in ("53300", "57P03") or any(words in text for words in RETRIED):
            return True
        if code[:2] == "28" or code == "42501" or any(words in text for words in REFUSED) or ("role" in text and "does not exist" in text):
            raise PermissionDenied(f"{self.where}: {text}{self._looked_for()}")
        if code == "3D000" or "does not exist" in text or misread(text):
            raise ConfigError(f"{self.where}: {text}")
        return False

    def _looked_for(self) -> str:
        """Which password file libpq wanted, for somebody who wrote one and must see where it was expected."""
        if "password" in self._known or self._password_file or os.environ.get("PGPASSWORD"):
            return ""
        path = self._known.get("passfile") or os.environ.get("PGPASSFILE") or os.path.join(os.path.expanduser("~"), ".pgpass")
        try:
            mode = os.stat(path).st_mode
        except OSError as error:
            return f"; password file {path}: {os.strerror(error.errno or 0)}"
        return f"; password file {path}: " + ("ignored, its mode is not 0600" if mode & 0o077 else "no line of it fits")

    def _text(self, name: str, target: Target) -> str:
        """The connection string for one address."""
        quiet = {"keepalives_idle": "10", "keepalives_interval": "3", "keepalives_count": "3", "tcp_user_timeout": "20000"}
        title = f"cronlock {name}".encode("utf-8", "replace")[:63].decode("utf-8", "ignore").strip()
        known = {**quiet, "application_name": title, **self._known, "client_encoding": "UTF8"}
        known |= {k: v for k, v in zip(("host", "hostaddr", "port"), target, strict=True) if v}
        if self._password_file:
            known["password"] = password_from(self._password_file)
        return conninfo(known)

    def _resolve(self, until: float, trouble: list[str]) -> Sequence[Target]:
        """Every address of every host, in order."""
        self._hosts = self._hosts or self._named()
        found: list[Target] = []
        for i, (host, address, port) in enumerate(self._hosts):
            if address or not host or host[0] in "/@":
                found.append((host, address, port))
                continue
            known = self._addresses.get(host, ())
            limit = min(1.0, left(until) / 4) if known else left(until) / min(2, len(self._hosts) - i)
            try:
                found_now = [str(address[0]) for _, address in dial.addresses(host, 0, now() + limit)]
                self._addresses[host] = known = list(dict.fromkeys(found_now))
            except BackendError as error:
                trouble.append(str(error))
            found += [(host, address, port) for address in known]
        return found

    def _named(self) -> Sequence[Target]:
        """Hosts and ports as libpq gathers them from the URL, the environment and the service file. It tells them
        even when it refuses to start, so it is given a value to refuse: nothing is looked up or connected."""
        conn = PGconn.connect_start(conninfo({**self._known, "sslmode": "none"}).encode())
        text, known = conn.error_message.decode(errors="replace"), {o.keyword: (o.val or b"").decode() for o in conn.info}
        conn.finish()
        if "sslmode" not in text:
            raise ConfigError(f"{self.where}: {told(text)[1]}")
        hosts, addresses, ports = (known.get(k, "").split(",") for k in (b"host", b"hostaddr", b"port"))
        if len(ports) == 1:
            ports *= max(len(hosts), len(addresses))
        return [(h or "", a or "", p or "5432") for h, a, p in zip_longest(hosts, addresses, ports)]


def shown(known: Mapping[str, str]) -> str:
    """A URL for people: servers and database, nothing else."""
    hosts, ports = ((known.get(k) or known.get(other, "")).split(",") for k, other in (("host", "hostaddr"), ("port", "port")))
    parts = [
        (f"[{host}]" if ":" in host else host.replace("/", "%2F")) + (f":{ports[min(i, len(ports) - 1)]}" if ports[0] else "")
        for i, host in enumerate(hosts)
    ]
    database = "/" + known["dbname"] if known.get("dbname") else ""
    return f"postgresql://{','.join(parts)}{database}" + (f"?service={known['service']}" if known.get("service") else "")


def jitter(low: float, high: float) -> float:
    """Seconds between the two."""
    return low + (high - low) * os.urandom(1)[0] / 255
