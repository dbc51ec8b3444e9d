"""One connection to PostgreSQL under one deadline: all that is needed of a driver, so that it can be another one."""

from __future__ import annotations

import os
import select
import socket
import time
from itertools import zip_longest

from psycopg import OperationalError, pq

from cronlock.backends import dial
from cronlock.clock import left, now
from cronlock.errors import BackendError, ConfigError, PermissionDenied

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Row = Sequence[str | None]
    Params = Callable[["Session"], Sequence[object]]  # a question's, once it is known who is asked
    Target = tuple[str, str, str]  # host, hostaddr, port

RETRIED = ("too many c", "connection slots", "starting up", "shutting down", "not yet accepting", "recovery mode", "no more connections")
REFUSED = (
    *("authentication failed", "no password supplied", "no pg_hba.conf entry", "pg_hba.conf rejects", "is not permitted to log in"),
    *("permission denied for database", "requires a valid client certificate", "no such user"),
)
_STANDBY = "{} is a standby (read-only), and its locks exclude nobody: name the primary"


class Broken(BackendError):
    """The connection is no more, or (`silent`) nothing came over it in time."""

    silent = False


class _Silent(Broken):
    silent = True


class Refused(Exception):
    """The server's own error: `code` is its SQLSTATE, empty for a log-in (libpq tells none there)."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Session:
    """One connection, and all that is needed of a driver: connect, ask, close.

    libpq's own non-blocking calls under one poll(): psycopg's connect_timeout knows whole seconds from 2 up, and its
    queries none. A signal handler that raises ends every wait, and the connection with it.
    `fd` is a copy of the socket: libpq closes its own when it meets an error, and then nobody could shut down the
    copies that another process holds.
    """

    def __init__(self, conn: pq.abc.PGconn, target: Target) -> None:
        self._conn = conn
        self.target = target
        self.fd = os.dup(conn.socket)
        self.pid, self.version = conn.backend_pid, conn.server_version
        self.standby = conn.parameter_status(b"in_hot_standby") == b"on"  # told since 14
        self.alive = True
        self.key = ""  # the name whose advisory lock it has

    @classmethod
    def connect(cls, conninfo: str, target: Target, until: float) -> Session:
        """Broken: not there, or no answer by `until`. Refused: it is, and said no."""
        conn = pq.PGconn.connect_start(conninfo.encode())
        try:
            events = select.POLLOUT
            while conn.status != pq.ConnStatus.BAD:
                _ready(conn.socket, events, until)
                match conn.connect_poll():
                    case pq.PollingStatus.OK:
                        conn.nonblocking = 1
                        return cls(conn, target)
                    case pq.PollingStatus.READING:
                        events = select.POLLIN
                    case pq.PollingStatus.WRITING:
                        events = select.POLLOUT
            text = conn.get_error_message()
        except BaseException:
            conn.finish()
            raise
        conn.finish()
        raise (Refused("", text) if "FATAL" in text or "no password" in text else Broken(line(text)))

    def ask(self, sql: str, params: Sequence[object], until: float) -> Sequence[Row]:
        """The rows, as text. Broken: no answer by `until`; the connection is closed, and what was asked may have been done."""
        conn, result = self._conn, None
        try:
            conn.send_query_params(sql.encode(), [None if p is None else str(p).encode("utf-8", "backslashreplace") for p in params])
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
            raise Broken(line(str(error))) from None
        except BaseException:
            self.close(shut=True)
            raise
        if result is not None and result.status in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
            cells = ([result.get_value(y, x) for x in range(result.nfields)] for y in range(result.ntuples))
            return [[None if cell is None else cell.decode() for cell in row] for row in cells]
        code = ((result and result.error_field(pq.DiagnosticField.SQLSTATE)) or b"").decode()
        said = (result and result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY)) or b""
        text = line(said.decode(errors="replace") or conn.get_error_message())
        if not code or code[:2] == "08" or code in ("57P01", "57P02", "57P03", "57P05"):
            self.close(shut=True)
            raise Broken(text)
        raise Refused(code, text)

    def close(self, *, shut: bool = False, quiet: bool = False) -> None:
        """Say goodbye. `shut`: whatever other processes hold copies, the server is to see the end of it.
        `quiet`: the server is to see nothing, for those copies still carry a lock."""
        if not self.alive:
            return
        self.alive = False
        if shut:
            try:
                with socket.socket(fileno=os.dup(self.fd)) as copy:
                    copy.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the other end was faster
        if quiet and self._conn.status == pq.ConnStatus.OK:
            null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            os.dup2(null, self._conn.socket, inheritable=False)  # there goes libpq's goodbye
            os.close(null)
        self._conn.finish()
        os.close(self.fd)


def line(text: str) -> str:
    """The line that says it: with sslmode=prefer libpq reports two attempts, and hints below."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["the connection was closed"]
    return next((line for line in lines if "FATAL" in line), lines[0])


def conninfo(known: Mapping[str, str]) -> str:
    return " ".join("{}='{}'".format(k, v.replace("\\", r"\\").replace("'", r"\'")) for k, v in known.items())


def _ready(fd: int, events: int, until: float) -> None:
    poller = select.poll()
    poller.register(fd, events)
    seconds = until - now()
    if seconds <= 0 or not poller.poll(int(min(seconds, 1e6) * 1000) + 1):
        raise _Silent("no answer in time")


def look_up(host: str, seconds: float) -> Sequence[str]:
    """The addresses of `host`. getaddrinfo can't be interrupted and has time-outs of its own."""
    try:
        socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
        return [host]
    except (OSError, ValueError):
        pass  # a name, or an address with a scope

    def ask() -> list[str]:
        return list(dict.fromkeys(str(i[4][0]) for i in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)))

    try:
        return dial.in_time(ask, now() + seconds, f"looking up {host}")  # type: ignore[no-any-return]
    except dial.Broken:
        raise OSError("the name server does not answer") from None
    except UnicodeError as error:
        raise OSError(str(error)) from None


class Servers:
    """Where the servers are, as the URL, the environment and the service file say, and how to get in."""

    def __init__(self, uri: str, password_file: str) -> None:
        """ValueError: libpq can't read it."""
        try:
            parsed = pq.Conninfo.parse(uri.encode())
        except OperationalError as error:  # its text quotes the URL, password included, but for this one
            text = line(str(error))
            raise ValueError(text if "query parameter" in text else text.partition(":")[0]) from None
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
            trouble: list[str] = [_STANDBY.format(shown({"host": host, "port": port})) for host, _, port in standby]
            full = False
            targets = [t for t in self._resolve(until, trouble) if t not in standby]
            for i, target in enumerate(targets):
                try:
                    session = Session.connect(self._text(name, target), target, now() + left(until) / (len(targets) - i))
                except Refused as error:
                    full |= self._refused(str(error))
                    trouble.append(line(str(error)))
                except Broken as error:
                    trouble.append(f"{shown({'host': target[0], 'port': target[2]})}: {error}" if error.silent else str(error))
                else:
                    if not session.standby:
                        return session
                    session.close()
                    trouble.append(_STANDBY.format(shown({"host": target[0], "port": target[2]})))
            if not full or left(until) < 0.05:
                raise BackendError(f"{self.where}: {'; '.join(dict.fromkeys(before or trouble))}")
            before = before or trouble
            time.sleep(min(left(until), jitter(pause / 2, pause)))  # a full server is not helped by being asked more often
            pause = min(2 * pause, 2.0)

    def _refused(self, text: str) -> bool:
        """Is it worth trying again? Errors that a person has to mend are raised. libpq tells no SQLSTATE for a log-in."""
        if any(words in text for words in RETRIED):
            return True
        if any(words in text for words in REFUSED) or ("role" in text and "does not exist" in text):
            raise PermissionDenied(f"{self.where}: {line(text)}{self._looked_for()}")
        if "does not exist" in text or "sslmode" in text:
            raise ConfigError(f"{self.where}: {line(text)}")
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
            known["password"] = _first_line(self._password_file)
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
                self._addresses[host] = known = look_up(host, limit)
            except OSError as error:
                trouble.append(f"can't look up the host {host}: {error.strerror or error}")
            found += [(host, address, port) for address in known]
        return found

    def _named(self) -> Sequence[Target]:
        """Hosts and ports as libpq gathers them from the URL, the environment and the service file. It tells them
        even when it refuses to start, so it is given a value to refuse: nothing is looked up or connected."""
        conn = pq.PGconn.connect_start(conninfo({**self._known, "sslmode": "none"}).encode())
        text, known = conn.get_error_message(), {o.keyword: (o.val or b"").decode() for o in conn.info}
        conn.finish()
        if "sslmode" not in text:
            raise ConfigError(f"{self.where}: {line(text)}")
        hosts, addresses, ports = (known.get(k, "").split(",") for k in (b"host", b"hostaddr", b"port"))
        if len(ports) == 1:
            ports *= max(len(hosts), len(addresses))
        return [(h or "", a or "", p or "5432") for h, a, p in zip_longest(hosts, addresses, ports)]


def _first_line(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            if os.fstat(file.fileno()).st_mode & 0o007:
                raise ConfigError(f"password_file {path}: others can read it: chmod o-rwx {path}")
            return file.readline().rstrip("\r\n")
    except PermissionError:
        raise PermissionDenied(f"password_file {path}: this user may not read it") from None
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"password_file {path}: {getattr(error, 'strerror', None) or 'is no text'}") from None


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
