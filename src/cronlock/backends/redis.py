"""Redis and Valkey: `SET key token NX PX ttl`, with the claim state decided in the same round trip.

    PREFIX NAME              the lock: "TOKEN {readable holder}"; expires with the ttl
    PREFIX NAME \\x1f state   claim state, as state.py writes it        } the control character is what no NAME has,
    PREFIX NAME \\x1f runs    history, a list of lines                  } so no two names share a key, and redis-cli
    PREFIX NAME \\x1f broken  a state that nobody could read, set aside } still shows which job a key belongs to
    PREFIX NAME \\x1f free    channel on which a release is told

A claim is SET NX outside the script and the
script behind it in one go, not one script: so the error codes are the server's own on every version, and a user
without EVAL has in the same replies all that Python needs to decide.
Not guaranteed: asynchronous replication may lose a grant at a failover, and two then hold it (docs/guarantees.md).
"""

from __future__ import annotations

import time

from cronlock import clock
from cronlock import state as states
from cronlock.backends.dial import ready
from cronlock.backends.redis_link import Server
from cronlock.backends.redis_scripts import CLAIM, DELETE, REGAIN, RELEASE, RENEW
from cronlock.backends.redis_url import Target, parse
from cronlock.backends.resp import Refusal
from cronlock.errors import BackendError, ConfigError, LeaseLost, PermissionDenied
from cronlock.model import Busy, Done, Grant, Run, Status
from cronlock.state import State

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from cronlock.backends.redis_link import Link
    from cronlock.model import Finding
    from cronlock.protocol import Lease

KEEP_MS = 90 * 86_400_000  # a state or history untouched for so long is nobody's
CLAIMED_MS = 11 * 365 * 86_400_000  # unless it has claimed periods, of which the longest (durations.LONGEST) must be over first
POLL = 0.2  # seconds between attempts of a waiter that nobody can wake
EARS_TRUST = 1.0  # and of one that is woken: whoever frees the lock by hand in redis-cli tells no channel


def connect(url: str, driver: bool = False) -> Redis:
    """No I/O yet. UsageError for a malformed URL. `driver`: through redis-py, as TLS always is."""
    return Redis(parse(url), driver)


class Redis:
    def __init__(self, target: Target, driver: bool = False) -> None:
        self.where, self.timeout, self._target = target.where, target.timeout, target
        self._server = Server(target, driver)
        self.warnings: list[str] = []
        """Lines for people about what was mended or left out; the caller prints them."""
        self._scripts = True  # False: the server does not run ours
        self._minimal = False  # the ACL refused EVAL: try nothing else it may refuse, each would be a line in ACL LOG
        self._deaf = False  # may not SUBSCRIBE
        self._hold = False  # the last attempt met a --min-hold in the state: nobody tells its end
        self._ear: tuple[str, Link] | None = None

    def try_acquire(self, grant: Grant, until: float) -> Lease | Busy | Done:
        grant = grant.but(run=_clean(grant.run))
        asked, token, value = clock.now(), grant.run.token.encode(), _value(grant.run)
        lock, state, _, broken, channel = self._keys(grant.name)
        commands: list[Any] = [("SET", lock, value, "NX", "PX", _ms(grant.ttl)), ("GET", lock), ("GET", state)]
        if self._scripts:
            run, hold = states.encode_run(grant.run), repr(grant.min_hold)
            args = (token, run, grant.run.label, int(grant.retry_failed), hold, KEEP_MS, CLAIMED_MS, repr(clock.wall()), channel)
            commands.append(("EVAL", CLAIM, 3, lock, state, broken, *args))
        replies = self._server.ask(commands, until, full=False)
        got = self._server.checked(replies[0])
        if got is None and len(replies) < len(commands):
            return Busy()  # said in so many words, whatever became of the rest
        if got not in (b"OK", None) or len(replies) < len(commands):
            raise BackendError(f"{self.where}: SET was answered {got!r}: not a Redis server, or something in between")
        try:
            return self._answer(grant, asked, replies, until)
        except Exception:
            self.abandon(grant, until)
            raise

    def _answer(self, grant: Grant, asked: float, replies: list[Any], until: float) -> RedisLease | Busy | Done:
        got, holder, old = (self._server.checked(reply) for reply in replies[:3])
        scripted = self._scripts and self._runs_scripts(replies[3])
        verdict = self._server.checked(replies[3]) if scripted else None
        if _token(holder) != grant.run.token.encode():
            if got:
                raise BackendError(f"{self.where}: SET was granted to us, GET answers {holder!r}: is there a proxy in between?")
            return self._busy(self._keys(grant.name)[0], holder, old, verdict)
        if scripted and not (isinstance(verdict, list) and len(verdict) == 3 and verdict[0] in (b"granted", b"refused")):
            raise BackendError(f"{self.where}: the claim was answered {verdict!r}")
        return self._claim(grant, asked, old, float(verdict[1]) if verdict else clock.wall(), until, verdict)

    def _claim(
        self, grant: Grant, asked: float, old: bytes | None, now: float, until: float, verdict: list[Any] | None = None
    ) -> RedisLease | Busy | Done:
        """The lock is mine: what does the state say? `verdict` is what the script has said and done; None: do it here,
        where nothing but GET, SET and DEL is allowed. Under the lock only its holder writes, so that is as safe,
        only two round trips long; a client that dies between them leaves a lock that ends with its ttl."""
        lock, state, _, broken, _ = self._keys(grant.name)
        try:
            before = states.decode(old) if old else State()
        except states.Foreign as error:
            if verdict and not verdict[2]:  # the script is easier to please
                if verdict[0] == b"refused":  # and has let the lock go
                    raise ConfigError(f"{self.where}: the state in {_shown(state)} is unreadable ({error}): redis-cli DEL it") from None
                verdict = None
            before = State()
            self.warnings.append(f"{self.where}: the state of {grant.name} was unreadable ({error}) and is now in {_shown(broken)}")
        if before.run and before.run.token == grant.run.token:
            return RedisLease(self, grant, asked, before, None)  # an earlier attempt got it and its answer was lost
        after = states.claim(before, grant, now)
        if verdict and (verdict[0] == b"granted") != isinstance(after, State):
            raise BackendError(f"{self.where}: script and program disagree on the state in {_shown(state)}: please report it")
        if isinstance(after, State):
            if not verdict:
                aside = [("SET", broken, old or b"", "PX", KEEP_MS)] if old and before == State() else []
                self._server.plain([*aside, ("SET", state, states.encode(after), "PX", _keep_ms(after))], until)
            return RedisLease(self, grant, asked, after, before)
        if not verdict:
            self._guarded(grant.name, grant.run.token, [("DEL", lock)], until)
        self._hold = True
        return after

    def _busy(self, lock: bytes, holder: bytes | None, old: bytes | None, answer: Any) -> Busy:
        self._hold, ttl = False, None
        if isinstance(answer, list) and len(answer) == 3 and answer[0] == b"busy":
            self._deaf = not answer[2]
            ttl = answer[1] / 1000 if answer[1] >= 0 else None
            if answer[1] == -1:
                # a lock for ever: no holder of ours makes one, and waiting for it would keep the job off in silence
                raise ConfigError(f"{self.where}: key {_shown(lock)} has no expiry{_said(holder)}: if nobody works under it, DEL it")
        run = _holder(holder, old)
        return Busy(run, held=bool(run and run.outcome not in ("", "released")), ttl_left=ttl)

    def abandon(self, grant: Grant, until: float) -> None:
        lock, state, *_, channel = self._keys(grant.name)
        token = grant.run.token
        try:
            command = ("EVAL", DELETE, 2, lock, state, token, channel, KEEP_MS, CLAIMED_MS)
            if self._scripts:
                answer = self._server.ask([command], until)[0]
                if self._runs_scripts(answer) and not isinstance(answer, Refusal):  # a cluster's node refuses two keys
                    return
            old = self._server.ask([("GET", state)], until)[0]
            mended: list[Any] = []
            before = _state(old)[0] if isinstance(old, bytes) else State()
            if before.run and before.run.token == token:  # else it is as it was: another program's, a newer one's
                before = states.withdrawn(before, token)
                mended.append(("SET", state, states.encode(before), "PX", _keep_ms(before)))
            self._guarded(grant.name, token, [*mended, ("DEL", lock)], until)
        except Exception:  # noqa: S110 - the ttl does it then
            pass

    def wait(self, name: str, until: float) -> None:
        lock, *_, channel = self._keys(name)
        try:
            if self._scripts and not (self._deaf or self._hold):
                by = min(until, clock.now() + self.timeout)
                ear = self._listen(name, channel, by)
                ttl = self._server.checked(self._server.ask([("PTTL", lock)], by)[0])  # only now: a release before SUBSCRIBE told nobody
                if not isinstance(ttl, int) or ttl == -2:
                    return
                if ready(ear.fd, min(until, clock.now() + min(EARS_TRUST, ttl / 1000 + 0.002 if ttl >= 0 else POLL))):
                    ear.ask((), min(until, clock.now() + 1), expect=1)
                return
        except PermissionDenied:
            self._deaf = True
        except BackendError:
            self._drop_ear()
        time.sleep(min(POLL, clock.left(until)))

    def _listen(self, name: str, channel: bytes, until: float) -> Link:
        if self._ear and self._ear[0] != name:
            self._drop_ear()
        if not self._ear:
            ear = self._server.open(until)
            self._ear = name, ear
            self._server.checked(ear.ask([("SUBSCRIBE", channel)], until)[0])
        return self._ear[1]

    def _drop_ear(self) -> None:
        if self._ear:
            self._ear[1].close()
        self._ear = None

    def status(self, name: str, until: float) -> Status:
        lock, state, *_ = self._keys(name)
        holder, old, ttl = self._server.ask([("GET", lock), ("GET", state), ("PTTL", lock)], until)
        holder, old = self._server.checked(holder), self._server.checked(old)
        ttl_left = ttl / 1000 if isinstance(ttl, int) and ttl >= 0 else None
        known, detail = _state(old)
        run = _holder(holder, old) if holder else known.run
        if holder and not run:
            detail = "held by another program" + _said(holder)
        if holder and ttl == -1:
            detail = f"fault: key {_shown(lock)} has no expiry, it would be held for ever" + (f"; {detail}" if detail else "")
        over = bool(run and run.outcome not in ("", "released"))  # what is left of its lock is a --min-hold
        return Status(name, bool(holder) and not over, run, ttl_left, known.held, detail)

    def names(self, until: float) -> Iterable[str]:
        prefix, end = self._target.prefix.encode("utf-8", "surrogateescape"), b"\x1fstate"
        glob = b"".join(b"\\" + c if c in (b"*", b"?", b"[", b"]", b"\\", b"^", b"-") else c for c in (bytes((i,)) for i in prefix))
        found: set[str] = set()
        cursor = b"0"
        while True:
            page = self._server.checked(self._server.ask([("SCAN", cursor, "MATCH", glob + b"*" + end, "COUNT", 1000)], until)[0])
            if not isinstance(page, list) or len(page) != 2:
                raise BackendError(f"{self.where}: SCAN was answered {page!r}")
            found.update(key[len(prefix) : -len(end)].decode("utf-8", "surrogateescape") for key in page[1])
            if (cursor := page[0]) == b"0":
                return sorted(found)

    def history(self, name: str, until: float) -> Sequence[Run]:
        runs = []
        for line in self._server.checked(self._server.ask([("LRANGE", self._keys(name)[2], -states.KEEP, -1)], until)[0]):
            try:
                runs.append(states.decode_run(line))
            except states.Foreign:
                continue
        return runs

    def seize(self, name: str, lost: Run, by: Run, until: float) -> None:
        """Under WATCH, so nothing happens between the look and the change; an operator's user may do more than a job's."""
        lock, state, runs, *_ = self._keys(name)
        lost, by = _clean(lost), _clean(by)
        for _attempt in range(10):
            _, holder, old, ttl = self._server.plain([("WATCH", lock, state), ("GET", lock), ("GET", state), ("PTTL", lock)], until)
            if _token(holder) != lost.token.encode():
                self._server.plain([("UNWATCH",)], until)
                raise LeaseLost(f"{self.where}: key {_shown(lock)} no longer holds the grant of pid {lost.pid} on {lost.host}")
            after = states.seized(_readable(old), lost, by, clock.wall())
            keep = _keep_ms(after)
            kept = [("SET", state, states.encode(after), "PX", keep), ("RPUSH", runs, states.encode_run(lost))]
            kept += [("LTRIM", runs, -states.KEEP, -1), ("PEXPIRE", runs, keep)]
            change = [("SET", lock, _value(after.run or by), "PX", max(1, ttl)), *kept]
            if self._server.plain([("MULTI",), *change, ("EXEC",)], until)[-1] is not None:
                return
        raise BackendError(f"{self.where}: key {_shown(lock)} changes again and again")

    def check(self, until: float) -> Iterable[Finding]:
        from cronlock.backends import redis_check

        return redis_check.findings(self._server, self._target.prefix, until)

    def key(self, name: str) -> str:
        """The same lock by hand: prints OK if it was free. Give a value of your own, and DEL only while GET shows it."""
        t = self._target
        tls = " --tls" if t.scheme in ("rediss", "valkeys") else ""
        way = f"-s {_quoted(t.path)}" if t.path else f"-h {t.host} -p {t.port}{tls}"
        key = _quoted(self._keys(name)[0].decode("utf-8", "backslashreplace"))
        return f'redis-cli {way}{f" -n {t.db}" if t.db else ""} SET {key} "$(hostname) $$" NX PX 60000'

    def close(self) -> None:
        self._drop_ear()
        self._server.close()

    def _keys(self, name: str) -> tuple[bytes, bytes, bytes, bytes, bytes]:
        lock = (self._target.prefix + name).encode("utf-8", "surrogateescape")
        return lock, lock + b"\x1fstate", lock + b"\x1fruns", lock + b"\x1fbroken", lock + b"\x1ffree"

    def _script(self, script: str, keys: Sequence[bytes], args: Sequence[Any], until: float) -> list[Any] | None:
        """The script's answer, ['held' | 'lost', …]; None where scripts are not allowed."""
        if not self._scripts:
            return None
        answer = self._server.ask([("EVAL", script, len(keys), *keys, *args)], until)[0]
        if not self._runs_scripts(answer):
            return None
        if not isinstance(self._server.checked(answer), list) or not answer or answer[0] not in (b"held", b"lost"):
            raise BackendError(f"{self.where}: EVAL was answered {answer!r}")
        return answer  # type: ignore[no-any-return]

    def _runs_scripts(self, answer: Any) -> bool:
        text = str(answer) if isinstance(answer, Refusal) else ""
        self._minimal = self._minimal or (text.startswith("NOPERM") and "'eval'" in text.lower())
        self._scripts = not (self._minimal or "unknown command" in text.lower())
        return self._scripts

    def _guarded(self, name: str, token: str, commands: list[Any], until: float) -> list[Any] | bytes | None:
        """Do the commands if the lock is mine: a list of replies; else the lock's value. Two round trips.
        With no more than GET and DEL allowed, the lock may run out and be taken between the two, and what hits it then
        is ours: one round trip at the end of a ttl that renewals keep at two thirds. With WATCH there is no such window."""
        lock = self._keys(name)[0]
        watch = [] if self._minimal else [("WATCH", lock)]
        replies = self._server.ask([*watch, ("GET", lock)], until)
        if watch and str(replies[0]).startswith(("NOPERM", "ERR unknown command")):  # where nobody has EVAL, only this tells
            self._minimal, watch, replies = True, [], replies[1:]
        *_, holder = map(self._server.checked, replies)
        if _token(holder) != token.encode():
            if watch:
                self._server.plain([("UNWATCH",)], until)
            return holder  # type: ignore[no-any-return]
        if not watch:
            return self._server.ask(commands, until)
        done = self._server.plain([("MULTI",), *commands, ("EXEC",)], until)[-1]
        return done if done is None else list(done)


class RedisLease:
    fds: Sequence[int] = ()  # a key, not a connection, is the lock

    def __init__(self, backend: Redis, grant: Grant, asked: float, after: State, before: State | None) -> None:
        assert after.run
        self.run, self.valid_for, self.warnings = after.run, grant.ttl, backend.warnings
        self.previous = states.vanished(before) if before else None
        self._backend, self._grant, self._state = backend, grant, after
        self._replaced = before.run.token if before and before.run else ""
        self._held_until = asked + grant.min_hold  # on the lease clock

    @property
    def watch_fd(self) -> int | None:
        return self._backend._server.fd

    def renew(self, until: float) -> None:
        backend, (lock, *_), token, ttl = self._backend, self._keys, self.run.token, _ms(self._grant.ttl)
        answer = backend._script(RENEW, [lock], (token, ttl), until)
        if answer is None:
            done = backend._guarded(self._grant.name, token, [("PEXPIRE", lock, ttl)], until)
            answer = [b"held"] if isinstance(done, list) and backend._server.checked(done[0]) else [b"lost", done]
        self._expect_held(answer)

    def regain(self, until: float) -> None:
        backend, (lock, state, *_), token = self._backend, self._keys, self.run.token
        value, ttl, text, keep = _value(self.run), _ms(self._grant.ttl), states.encode(self._state), _keep_ms(self._state)
        answer = backend._script(REGAIN, [lock, state], (token, value, ttl, self._replaced, text, keep), until)
        if answer is None:
            _, at, old = backend._server.plain([("SET", lock, value, "NX", "PX", ttl), ("GET", lock), ("GET", state)], until)
            last = _state(old)[0].run
            answer = [b"lost", at]
            if _token(at) == token.encode():
                fits = last is not None and last.token in (token, self._replaced)
                backend._guarded(self._grant.name, token, [("SET", state, text, "PX", keep) if fits else ("DEL", lock)], until)
                answer = [b"held"] if fits else [b"lost", None]
        self._expect_held(answer)

    def release(self, run: Run, until: float) -> None:
        backend, (lock, state, runs, _, channel) = self._backend, self._keys
        run = _clean(run)
        text, keep = states.encode(states.ended(self._state, run)), _keep_ms(self._state)
        rest = _ms(clock.left(self._held_until)) if clock.left(self._held_until) else 0
        lines = [states.encode_run(r) for r in (self.previous, run) if r]
        answer = backend._script(RELEASE, [lock, state, runs], (run.token, rest, channel, keep, text, *lines), until)
        if answer is None:
            # the lock goes last: while it stands, nobody else writes the state. History is a list, which a minimal user may not touch
            commands: list[Any] = [("SET", state, text, "PX", keep)]
            if not backend._minimal:
                commands += [("RPUSH", runs, *lines), ("LTRIM", runs, -states.KEEP, -1), ("PEXPIRE", runs, keep)]
                commands.append(("PUBLISH", channel, "1"))
            commands.append(("PEXPIRE", lock, rest) if rest else ("DEL", lock))
            done = backend._guarded(self._grant.name, run.token, commands, until)
            answer = [b"held"] if isinstance(done, list) and backend._server.checked(done[-1]) else [b"lost", done]
        self._expect_held(answer)
        if len(answer) > 1 and answer[1]:
            backend.warnings.append(f"{backend.where}: released, but the end of the run was not written: {_printable(answer[1])}")

    @property
    def _keys(self) -> tuple[bytes, bytes, bytes, bytes, bytes]:
        return self._backend._keys(self._grant.name)

    def _expect_held(self, answer: list[Any]) -> None:
        if answer[0] != b"held":
            at = answer[1] if len(answer) > 1 and isinstance(answer[1], bytes) else None
            if taken := states.taken_away(_holder(at, None)):
                raise LeaseLost(f"{self._backend.where}: {taken}")
            why = f"now holds another value{_said(at)}" if at else "is gone (run out, evicted, deleted, or the server lost its data)"
            raise LeaseLost(f"{self._backend.where}: key {_shown(self._keys[0])} {why}")


def _value(run: Run) -> bytes:
    return f"{run.token} {states.encode_run(run)}".encode()


def _token(value: Any) -> bytes:
    return value.partition(b" ")[0] if isinstance(value, bytes) and b" " in value else b""


def _holder(value: bytes | None, old: bytes | None) -> Run | None:
    """Who holds the lock: from the state if that is the same grant, which knows its fence and its end, else from the value."""
    last = _state(old)[0].run
    if last and last.token.encode() == _token(value):
        return last
    try:
        run = states.decode_run((value or b"").partition(b" ")[2])
    except states.Foreign:
        return None
    return run if run.token.encode() == _token(value) else None


def _state(old: bytes | None) -> tuple[State, str]:
    try:
        return (states.decode(old) if old else State()), ""
    except (states.Foreign, ConfigError) as error:
        return State(), f"state unreadable: {error}"


def _readable(old: bytes | None) -> State:
    """For who writes it back: what is broken starts anew, a newer program's is refused (ConfigError)."""
    try:
        return states.decode(old) if old else State()
    except states.Foreign:
        return State()


def _clean(run: Run) -> Run:
    """Undecodable bytes of an argv as `\\udcff` in plain letters: Lua's JSON refuses a lone surrogate."""
    return run.but(**{k: v.encode("utf-8", "backslashreplace").decode() for k, v in run.as_dict().items() if isinstance(v, str)})


def _keep_ms(state: State) -> int:
    return CLAIMED_MS if state.claims else KEEP_MS


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _printable(value: bytes) -> str:
    return value[:60].decode("utf-8", "backslashreplace").encode("unicode_escape").decode()


def _said(value: bytes | None) -> str:
    """What stands there; of a grant of ours who has it, for whoever knows its token can let the lock go."""
    run = _holder(value, None)
    if run:
        return f" (of pid {run.pid} on {run.host})"
    return f" ({_printable(value)})" if value else ""


def _quoted(text: str) -> str:
    """For a shell."""
    return "'" + text.replace("'", "'\\''") + "'"


def _shown(key: bytes) -> str:
    return repr(key.decode("utf-8", "backslashreplace"))
