"""PostgreSQL: a row is the lease, and a session's advisory lock stands beside it.

The row (token, expiry, holder, fence, claims) survives a restart of the server and a broken connection; the advisory
lock does not, but it wakes waiters at once, is shared with scripts that exist, and is the whole lock for roles that
may make no table. Every decision is one autocommit statement on the server's clock_timestamp(): now() stands still
inside a transaction, and a SELECT before the write would decide on what was true a moment ago.

Not guaranteed: a server set up to fail over asynchronously may forget the last grants; someone who writes into the
table writes into the lock.
"""

from __future__ import annotations

import time

from cronlock import state
from cronlock.backends import postgresql_sql as sql
from cronlock.backends.dial import Broken
from cronlock.backends.postgresql_session import Refused, Servers, Session, jitter
from cronlock.backends.urls import decoded
from cronlock.clock import left, now
from cronlock.errors import BackendError, ConfigError, CronlockError, LeaseLost, PermissionDenied, UsageError
from cronlock.lean import suppress
from cronlock.model import Busy, Done, Grant, Run, Status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cronlock.backends.postgresql_session import Params, Row, Target
    from cronlock.model import Finding

TIMEOUT = 10.0  # seconds for everything one call does, unless ?connect_timeout= says otherwise
LONGEST = 63  # bytes of a table's name; the server cuts off what is longer (NAMEDATALEN)
POLL = 0.2  # seconds between looks at a lock whose release wakes nobody
OURS = ("table", "prefix", "lock_mode", "lock_key", "connect_timeout", "password_file")
RACES = ("42P07", "42710", "23505", "40001", "40P01", "XX000")  # two made the table at once; XX000: "tuple concurrently updated"


class PostgresLease:
    """`run` is in the row, and, in session mode, the advisory lock on `session`. Without `row`: on `session` alone."""

    def __init__(self, backend: PostgreSQL, grant: Grant, run: Run, previous: Run | None, session: Session | None, *, row: bool) -> None:
        self.run = run
        self.valid_for = grant.ttl
        self.previous = previous.but(outcome="vanished") if previous and not previous.outcome else None
        self._replaced = previous.token if previous else ""
        self._backend, self._name, self._ttl = backend, grant.name, grant.ttl
        self.row, self.session = row, session
        self._alone = session is None  # lease mode: no connection while the command runs

    @property
    def fds(self) -> Sequence[int]:
        return [self.session.fd] if self.session and self.session.alive else []

    @property
    def watch_fd(self) -> int | None:
        return self.session.fd if self.session and self.session.alive else None

    def renew(self, until: float) -> None:
        if self.row:
            self._keep(sql.RENEW, until)
            return
        try:
            self._own_session().ask("select 1", (), until)
        except Broken as error:
            if now() >= until:
                raise BackendError(f"{self._backend.where}: {error}") from None
            raise LeaseLost(f"{self._backend.where}: the session that held the lock is gone ({error})") from None
        except Refused as error:
            raise self._backend.said(error) from None

    def regain(self, until: float) -> None:
        if not self.row:
            raise LeaseLost(f"{self._backend.where}: no state tells whose the lock is")
        self._keep(sql.REGAIN, until, self._replaced or None, _json(self.run), self.run.fence)

    def _own_session(self) -> Session:
        if not self.session or not self.session.alive:
            raise LeaseLost(f"{self._backend.where}: the session that held the lock is gone")
        return self.session

    def _keep(self, statement: str, until: float, *more: object) -> None:
        def params(session: Session) -> Sequence[object]:
            settings = self._backend.settings(session, self._ttl, until, idle=not self._alone)
            again = not self._alone and session.key != self._name
            return (self._backend.row_name(self._name), session.pid, settings, again, self.run.token, self._ttl, *more)

        self.session, rows = self._backend.ask(self.session, statement, params, self._name, until)
        got, ours, stored = rows[0]
        if got == "t":  # if not: a dead connection of ours lingers, or a script has it. The row is the lease; asked for again next time
            self.session.key = self._name
        if self._alone or ours != "t":
            self.session.close()
            self.session = None
        if ours != "t":
            why = state.taken_away(_run(stored)) or f"the lock {self._name!r} is no longer ours"
            raise LeaseLost(f"{self._backend.where}: {why}")

    def release(self, run: Run, until: float) -> None:
        def params(session: Session) -> Sequence[object]:
            return (self._backend.row_name(self._name), self.run.token, _json(run), session.key == self._name)

        try:
            if not self.row:
                self._own_session().ask(sql.UNLOCK.format(**self._backend.filled), (self._backend.row_name(self._name),), until)
                return
            self.session, rows = self._backend.ask(self.session, sql.RELEASE, params, self._name, until, create=True)
            if rows[0][0] == "0" and rows[0][1] != "t":  # t: an answer was lost, and this is the second try
                raise LeaseLost(f"{self._backend.where}: the lock {self._name!r} was no longer ours")
        except Refused as error:
            raise self._backend.said(error) from None
        finally:
            self.drop()

    def drop(self) -> None:
        """Close what carries it, without a word to the server."""
        if self.session:
            self.session.close()
        self.session = None
        self._backend.leases.pop(self.run.token, None)


class PostgreSQL:
    """The backend; see `connect`."""

    def __init__(self, url: str) -> None:
        base, _, query = url.partition("?")
        own: dict[str, str] = {}
        rest: list[str] = []
        for pair in filter(None, query.split("&")):
            option, _, value = pair.partition("=")
            if option in OURS:
                own[option] = decoded(value)
            else:
                rest.append(pair)
        scheme, _, body = base.partition(":")
        authority, _, name = body.removeprefix("//").partition("/")
        if authority.count("@") > 1 or "@" in name or "@" in query.partition("=")[0]:  # a message would show half a password as a host
            raise UsageError(f"{scheme}://…: in a user name or password @ / ? are written %40 %2F %3F, in a database name @ is %40")
        uri = f"{scheme}://{body.removeprefix('//')}" + ("?" + "&".join(rest) if rest else "")
        try:
            self._servers = Servers(uri, own.get("password_file", ""))
        except ValueError as error:
            raise UsageError(f"{scheme}: {error} (ours are {', '.join(OURS)})") from None
        if not self._servers.named:
            raise UsageError(f"{scheme}: names no server: give {scheme}://host/database, ?service=, or PGHOST")
        self.where = self._servers.where
        self.warnings: list[str] = []
        self._prefix = own.get("prefix", "cronlock:")
        self._mode = own.get("lock_mode", "auto")
        if self._mode not in ("auto", "session", "lease"):
            raise UsageError(f"{scheme}: lock_mode is session or lease, not {self._mode!r}")
        self._lock_key = own.get("lock_key", "")
        if self._lock_key:
            digits = self._lock_key.removeprefix("-")
            if not (digits.isascii() and digits.isdecimal() and len(digits) < 20 and -(2**63) <= int(self._lock_key) < 2**63):
                raise UsageError(f"{scheme}: lock_key is a whole number of 64 bits, not {self._lock_key!r}")
            if self._mode == "lease":
                raise UsageError(f"{scheme}: lock_key is held by a session, so it goes with lock_mode=session only")
            self._mode = "session"
        table = own.get("table", "cronlock")
        schema, dot, bare = table.rpartition(".")
        if not bare.isidentifier() or (dot and not schema.isidentifier()):
            raise UsageError(f"{scheme}: table is NAME or SCHEMA.NAME, not {table!r}")
        if len(f"{bare}_runs".encode()) > LONGEST:
            raise UsageError(f"{scheme}: table {bare!r} is too long: with _runs behind it, a name has at most {LONGEST} bytes")
        self.filled = {
            "schema": f'"{schema or "public"}"',
            "table": f'"{schema or "public"}"."{bare}"',
            "runs": f'"{schema or "public"}"."{bare}_runs"',
            # $1 is named either way: the server refuses a parameter that no expression uses
            "key": f"(case when $1::text is not null then '{self._lock_key}'::bigint end)" if self._lock_key else "hashtextextended($1, 0)",
        }
        try:
            self.timeout = float(own.get("connect_timeout", TIMEOUT))
        except ValueError:
            self.timeout = -1
        if not 0 < self.timeout < 1e6:
            raise UsageError(f"{scheme}: connect_timeout is a number of seconds, not {own['connect_timeout']!r}")
        self._sessions: list[Session] = []
        self._spare: Session | None = None  # of an attempt that got no lease: the next one, or a wait, goes on with it
        self._pooled = False
        self._blocked = True  # as far as we know a session has the advisory lock, so that its release would wake us
        self.leases: dict[str, PostgresLease] = {}

    # -- the protocol

    def try_acquire(self, grant: Grant, until: float) -> PostgresLease | Busy | Done:
        for last in (False, False, True):
            answer = self._row_claim(grant, until) if not self._lock_key else self._advisory_claim(grant, until)
            if answer is not None:
                return answer
            if not last:  # refused, and yet free a moment ago: somebody was faster, or it is a script's
                time.sleep(min(left(until), jitter(0.01, 0.03)))
        return Busy()

    def _row_claim(self, grant: Grant, until: float) -> PostgresLease | Busy | Done | None:
        def params(session: Session) -> Sequence[object]:
            settings = self.settings(session, grant.ttl, until, idle=self._mode != "lease")
            holding = session.key == grant.name
            run = grant.run
            asked = (run.token, grant.ttl, grant.min_hold, _json(run), run.label, grant.retry_failed)
            return (self.row_name(grant.name), session.pid, settings, self._mode, holding, *asked)

        try:
            session, rows = self.ask(self._take_spare(grant.name), sql.CLAIM, params, grant.name, until, create=True)
        except NoTable as tableless:
            self._spare = tableless.session
            return self._advisory_claim(grant, until, tableless)
        got, direct, fence, replaced, version, stored, expires, held, had = rows[0][:9]
        self._check_pooler(session, direct)
        previous, holder = _run(replaced), _run(stored)
        resent = not fence and holder is not None and holder.token == grant.run.token and float(expires or 0) > 0
        if fence or resent:  # resent: the answer to our first try got lost with its connection
            session.key = grant.name if fence and self._mode != "lease" else ""
            run = grant.run.but(fence=int(fence or (holder and holder.fence) or 0))
            if self._mode == "lease":
                session.close()
            return self._granted(PostgresLease(self, grant, run, previous, None if self._mode == "lease" else session, row=True))
        session.key = ""
        self._spare = session
        self._blocked = got != "t"
        if int(version or 1) > state.VERSION:
            raise ConfigError(f"{self.where}: the row of {grant.name!r} has format {version}: update cronlock on this host")
        if float(expires or 0) > 0:
            return Busy(holder, ttl_left=float(expires or 0))
        if float(held or 0) > 0:
            return Busy(holder, held=True, ttl_left=float(held or 0))
        claimed = _run(had)
        if claimed and not (grant.retry_failed and claimed.outcome != "ok"):
            return Done(claimed)
        return None

    def _advisory_claim(self, grant: Grant, until: float, tableless: NoTable | None = None) -> PostgresLease | Busy | None:
        if grant.run.label or grant.min_hold or self._mode == "lease":
            what = "--once-per" if grant.run.label else "--min-hold" if grant.min_hold else "lock_mode=lease (or a pooler)"
            if tableless is None:
                raise ConfigError(f"{self.where}: lock_key keeps no state, and {what} needs some")
            raise ConfigError(f"{self.where}: {what} needs a table, and {tableless.why}; have its owner run: {self.ddl()}")

        def params(session: Session) -> Sequence[object]:
            settings = self.settings(session, grant.ttl, until, idle=True)
            return (self.row_name(grant.name), session.pid, settings, "session", session.key == grant.name)

        session, rows = self.ask(self._take_spare(grant.name), sql.ADVISORY, params, grant.name, until)
        got, direct, fence = rows[0]
        self._mode = "session"
        self._check_pooler(session, direct)
        if got is None:
            raise BackendError(f"{self.where}: is a standby (read-only), its locks exclude nobody: name the primary")
        session.key = grant.name if got == "t" else ""
        if got == "t":
            return self._granted(PostgresLease(self, grant, grant.run.but(fence=int(fence or 0)), None, session, row=False))
        self._spare, self._blocked = session, True
        return Busy()

    def abandon(self, grant: Grant, until: float) -> None:
        lease = self.leases.get(grant.run.token)
        if not self._sessions:
            return  # no server has heard of it
        session = lease.session if lease and lease.session and lease.session.alive else None

        def params(session: Session) -> Sequence[object]:
            return (self.row_name(grant.name), grant.run.token, session.key == grant.name)

        with suppress(CronlockError):  # no answer now either: then the ttl does it
            for asked in self._sessions:
                if asked.owes:  # a signal broke in on the claim, and the server may not have come to it yet
                    session = asked
                    asked.hear(now() + left(until) / 2)
        try:
            if lease is None or lease.row:
                session, _ = self.ask(session, sql.ABANDON, params, grant.name, until)
            elif session:
                session.ask(sql.UNLOCK.format(**self.filled), (self.row_name(grant.name),), until)
        except (CronlockError, Refused):
            pass  # then the ttl does it
        if session:
            session.close()
        if lease:
            lease.drop()

    def wait(self, name: str, until: float) -> None:
        if self._mode == "lease" or not self._blocked:
            # nobody's unlock would wake us: the row has no session, or only has to run out
            if self._pooled and self._spare:
                self._spare.close()  # some poolers lend a server connection for as long as ours lasts, and the holder needs one to renew
            time.sleep(min(left(until), jitter(POLL / 2, POLL)))
            return
        limit = min(until, now() + 60)  # look at the server once a minute
        session = self._take_spare(name)
        try:
            session = session or self._open(name, limit)
            if session.key != name:
                settings = self.settings(session, 0, limit - 0.02, idle=False)
                if session.ask(sql.SET, ("", session.pid, settings), limit)[0][0] == "t":
                    session.ask(sql.WAIT.format(**self.filled), (self.row_name(name),), limit)
                    session.key = name
                self._blocked = bool(session.key)  # not so behind a pooler
        except Refused as error:
            if error.code != "55P03":  # lock_timeout. Otherwise: a server that can't check its client's connection
                self._blocked = False
        except CronlockError:  # what is wrong the next attempt will say
            time.sleep(min(left(until), POLL))
        except BaseException:
            if session:
                session.close(shut=True)  # out of the queue
            raise
        self._spare = session

    def status(self, name: str, until: float) -> Status:
        rows: Sequence[Row] = []
        for source in [sql.NO_TABLE] if self._lock_key else [self.filled["table"], sql.NO_TABLE]:
            try:
                rows = self._read(sql.STATUS.replace("{source}", source), (self.row_name(name),), name, until)
                break
            except NoTable:
                continue
        version, stored, expires, held, pid, application = rows[0]
        run, ttl = _run(stored), float(expires or 0)
        detail = f"advisory lock of server process {pid} ({application})" if pid and ttl <= 0 else ""
        if int(version or 1) > state.VERSION:  # said here, for an error would hide all other locks
            detail = f"its row has format {version}: update cronlock on this host"
        return Status(name, ttl > 0 or bool(pid), None if detail else run, ttl if ttl > 0 else None, float(held or 0), detail)

    def names(self, until: float) -> Iterable[str]:
        if self._lock_key:
            return []  # what is in the table is other locks'
        try:
            rows = self._read(sql.NAMES, (self._prefix,), "", until)
        except NoTable:
            return []
        return [str(row[0]).removeprefix(self._prefix) for row in rows]

    def history(self, name: str, until: float) -> Sequence[Run]:
        if self._lock_key:
            return []
        try:
            rows = self._read(sql.HISTORY, (self.row_name(name),), name, until)
        except NoTable:
            return []
        return [run for row in rows if (run := _run(row[0]))]

    def seize(self, name: str, lost: Run, by: Run, until: float) -> None:
        params = (self.row_name(name), lost.token, _json(lost), by.token, _json(by))
        try:
            rows = self._read(sql.SEIZE, params, name, until)
        except NoTable:
            rows = [["0"]]
        if rows[0][0] == "0":
            raise LeaseLost(f"{self.where}: the lock {name!r} is no longer held by pid {lost.pid} on {lost.host}")

    def check(self, until: float) -> Iterable[Finding]:
        from cronlock.backends import postgresql_check

        session, rows = self.ask(None, sql.SET, lambda s: ("", s.pid, self.settings(s, 60, until, idle=True)), "check", until)
        try:
            found = postgresql_check.findings(session, self.filled, self.ddl(), until, direct=rows[0][0] == "t")
            yield from (one for one in found if not (self._lock_key and one.subject in ("table", "rights")))
        except Refused as error:
            raise self.said(error) from None
        finally:
            session.close()

    def key(self, name: str) -> str:
        if self._lock_key:
            return f"select pg_try_advisory_lock({self._lock_key})"
        text = "'" + self.row_name(name).replace("'", "''") + "'"
        row = sql.ROW.format(name=text, **self.filled)
        return f"select pg_try_advisory_lock(hashtextextended({text}, 0)); {row}"

    def close(self) -> None:
        held = [lease.session for lease in self.leases.values()]
        for session in self._sessions:
            session.close(quiet=session in held)
        self._sessions, self._spare = [], None
        self.leases.clear()

    # -- for the lease

    def row_name(self, name: str) -> str:
        """What the table calls it, and what is hashed for the advisory lock."""
        return self._prefix + name

    def ddl(self) -> str:
        """The tables as SQL, in one line, and what a role must be granted that does not own them."""
        bare = (" ".join(line.partition("--")[0].strip() for line in table.splitlines()) for table in sql.DDL)
        return "; ".join((*bare, sql.GRANTS)).format(**self.filled)

    def settings(self, session: Session, ttl: float, until: float, *, idle: bool) -> str:
        """What the server is to know, as JSON; sent with the question, for a pooler refuses it at the start of a session.
        `idle`: end a session that says nothing for a ttl, for its machine has lost its power; renewals come every third."""
        known = {"lock_timeout": _ms(left(until)), "tcp_user_timeout": 20000}
        known |= {"tcp_keepalives_idle": 10, "tcp_keepalives_interval": 3, "tcp_keepalives_count": 3}
        if session.version >= 140000 and ttl and idle:
            known["idle_session_timeout"] = _ms(ttl)
        if session.version >= 140000 and not ttl:
            known["client_connection_check_interval"] = 1000  # a killed waiter must not stay in the queue
            known["idle_session_timeout"] = 500  # and a frozen one not keep what it was given while it can't claim the row
        return "{" + ", ".join(f'"{key}": {value}' for key, value in known.items()) + "}"

    def ask(
        self, session: Session | None, statement: str, params: Params, name: str, until: float, *, create: bool = False
    ) -> tuple[Session, Sequence[Row]]:
        """Ask on `session`, or, if that is dead or silent, on a new one to a server that can be written to."""
        statement = statement.format(**self.filled)
        standby: set[Target] = set()
        missing: Refused | None = None
        made = False
        if session and not session.alive:
            session = None
        while True:
            kept = session is not None
            session = session or self._open(name, until, standby)
            try:
                if missing:
                    self._create(session, until, missing)
                    missing, made = None, True
                # a connection that a firewall forgot swallows everything: leave time for another one
                return session, session.ask(statement, params(session), now() + left(until) / 2 if kept else until)
            except Broken as error:
                if not kept:
                    raise BackendError(f"{self.where}: {error}") from None
            except Refused as error:
                if error.code == "42P01" and create and not made:
                    missing = error
                    continue
                if error.code == "42P01":
                    raise NoTable(session, "it does not exist") from None
                session.close()
                if error.code == "25006":
                    standby.add(session.target)
                elif error.code != "40001" or left(until) < 0.1:  # of a role whose transactions are serializable: another wrote first
                    raise self.said(error) from None
            session = None

    def said(self, error: Refused) -> CronlockError:
        """The server's error in our words."""
        code, where = error.code, f"{self.where}: {error}"
        if code == "42501":
            advice = sql.OPEN if "row-level security" in str(error) else sql.GRANTS
            return PermissionDenied(f"{where}; have the owner run: {advice.format(**self.filled)}")
        if code in ("23502", "3F000", "42P01", "42703", "42804", "42883", "42P10", "42809"):
            return ConfigError(f"{where}; the tables should be: {self.ddl()}")
        if code == "22P05":
            return ConfigError(f"{where}; NAME, user and program must be in the database's encoding, as in UTF8 they are")
        return BackendError(f"{where} (SQLSTATE {code})" if code else where)

    # -- connections

    def _open(self, name: str, until: float, standby: Iterable[Target] = ()) -> Session:
        session = self._servers.open(name, until, standby)
        self._sessions = [*(s for s in self._sessions if s.alive), session]
        return session

    def _granted(self, lease: PostgresLease) -> PostgresLease:
        self.leases[lease.run.token] = lease
        return lease

    def _check_pooler(self, session: Session, direct: str | None) -> None:
        self._pooled = direct != "t"
        if direct == "t":
            self._mode = "session" if self._mode == "auto" else self._mode
        elif self._mode == "session":
            session.close()
            advice = "connect directly" if self._lock_key else "connect directly, or use lock_mode=lease"
            raise ConfigError(f"{self.where}: a connection pooler lends a session's lock to others: {advice}")
        else:
            self._mode = "lease"

    def _take_spare(self, name: str) -> Session | None:
        spare, self._spare = self._spare, None
        if spare and spare.key not in ("", name):
            spare.close()
        return spare if spare and spare.alive else None

    def _read(self, statement: str, params: Sequence[object], name: str, until: float) -> Sequence[Row]:
        try:
            self._spare, rows = self.ask(self._take_spare(name), statement, lambda _: params, name, until)
            if self.leases:  # while a command runs, its own connection is enough
                self._spare.close()
        except NoTable as error:
            self._spare = error.session
            raise
        return rows

    def _create(self, session: Session, until: float, missing: Refused) -> None:
        for table in sql.DDL:
            while True:
                try:
                    session.ask(table.format(**self.filled), (), until)
                    break
                except Refused as error:
                    if error.code == "42501" and self.filled["runs"].replace('"', "") in str(missing):
                        raise self.said(missing) from None  # the lock's own table is there
                    if error.code == "42501":
                        raise NoTable(session, f"this role may not make it ({error})") from None
                    if error.code not in RACES or left(until) < 0.1:
                        raise
                    time.sleep(jitter(0.01, 0.05))


class NoTable(LeaseLost):
    """The table is not there, and could not be made. For a lease that means lost."""

    def __init__(self, session: Session, why: str) -> None:
        super().__init__(f"the table of locks is missing: {why}")
        self.session, self.why = session, why


def connect(url: str) -> PostgreSQL:
    """The backend for `postgresql://…`; libpq's URLs, parameters and environment, and our own parameters:

    table=schema.name (public.cronlock), prefix= (cronlock:), lock_mode=session|lease, lock_key=NUMBER,
    connect_timeout=SECONDS (10, for everything a call does), password_file=PATH (its first line).
    UsageError: the URL makes no sense, or names no server.
    """
    return PostgreSQL(url)


def _run(text: str | None) -> Run | None:
    try:
        return state.decode_run(text) if text else None
    except state.Foreign:
        return None


def _json(run: Run) -> str:
    """jsonb refuses lone surrogates (undecodable bytes in argv), and \\u… at all in a database that is not UTF-8."""
    text = state.encode_run(run)
    if "\\u" not in text:
        return text
    import json

    plain = json.dumps(json.loads(text), ensure_ascii=False)
    return "".join(rf"\\u{ord(c):04x}" if "\ud800" <= c <= "\udfff" else c for c in plain)


def _ms(seconds: float) -> int:
    return max(1, min(int(seconds * 1000), 2**31 - 1))
