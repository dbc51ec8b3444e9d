"""Heartbeats: the lock tells whether a job ran, the heartbeat tells the monitor whether it finished.

Two halves. Pure: `parse` makes a Target of a URL, `call` says which request a dialect makes of a ping. And `Heartbeat`,
an observer that sends them from threads, so that a monitor which is dead, slow or lying delays nothing before the
command, keeps no lock and changes no status. This module is imported only where a URL is given, requests only once the
command runs, and no thread exists before the guard was forked. Of a ping URL nothing but the host is ever printed.

The calls are the services' documented ones: Healthchecks' pinging API, Cronitor's telemetry API, Better Stack's
heartbeats, Uptime Kuma's push monitors, Sentry's cron check-ins over HTTP.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import warnings
from urllib.parse import quote, urljoin, urlsplit

from cronlock import __version__, clock, durations, exits, observers
from cronlock.errors import UsageError
from cronlock.model import Event, Outcome, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import requests

    from cronlock.tail import Ring

    Bytes = bytes | memoryview
    Call = tuple[str, tuple[Bytes, ...]]  # the URL, and the body in parts; without one it is a GET

FIRST_PAUSE = 0.5  # seconds before the second try; doubled before each further one
MARGIN = 0.2  # seconds of --heartbeat-timeout kept for saying what was lost
REDIRECTS = 5
IN_URL = 1000  # bytes of output that travel in a URL: servers refuse URLs of more than about 8 kB
FIELDS = ("outcome", "status", "duration", "name", "run_id", "host")

_FIELD = re.compile(r"\{(\w+)\}")
_UUID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_KNOWN = (  # dialect, host, path; the first that fits
    ("healthchecks", r"hc-ping\.com", r"/.+"),
    ("cronitor", r"cronitor\.link", r"/.+"),
    ("cronitor", r"cronitor\.io", r"/p/.+"),
    ("betterstack", r"(?:.+\.)?better(?:stack|uptime)\.com", r"/api/v1/heartbeat/[^/]+/?"),
    ("healthchecks", r".*", rf".*/ping/(?:{_UUID}|[\w-]{{22}}/[\w-]+)/?"),
    ("kuma", r".*", r".*/api/push/[^/]+/?"),
    ("sentry", r".*", r".*/api/[^/]+/cron/[^/]+/[^/]+/?"),
)


class Target(Value):
    """A --heartbeat URL, understood."""

    dialect: str
    host: str  # the only part that is ever printed
    base: str  # up to and without the query
    query: str = ""


class Ping(Value):
    """What there is to tell. No outcome: the command has started."""

    name: str
    host: str
    run_id: str  # as in log and history
    uuid: str  # begins with it; some services want this form
    outcome: str = ""
    status: int = 0
    duration: float = 0.0  # seconds
    reason: str = ""  # of an end that is neither ok nor simply failed

    @property
    def well(self) -> bool:
        return self.outcome == "ok"

    @property
    def text(self) -> str:
        return self.reason or f"{self.outcome}, status {self.status}"


def parse(text: str, nth: int = 1) -> Target:
    """The target of a URL. UsageError for anything that is none; it does not repeat the URL, which holds a token."""
    which = "--heartbeat" if nth == 1 else f"--heartbeat number {nth}"
    if not text:
        raise UsageError(f"{which} is empty: give a URL")
    if any(c.isspace() or not c.isprintable() for c in text):
        raise UsageError(f"{which}: a URL has no spaces and no control characters")
    scheme, _, rest = text.partition("://")
    dialect = "healthchecks" if scheme.lower().startswith("hc+") else ""
    scheme = scheme.lower().removeprefix("hc+")
    if scheme not in ("http", "https") or not rest:
        raise UsageError(f"{which}: the URL must begin with https:// or http:// (hc+https:// for Healthchecks of your own)")
    try:
        parts = urlsplit(f"{scheme}://{rest}")
        host, port = parts.hostname or "", parts.port
        host.encode("ascii" if host.isascii() else "idna")
    except ValueError:  # brackets, a port beyond 65535, a name that no resolver takes
        raise UsageError(f"{which}: host or port of the URL make no sense") from None
    if not host or port == 0 or not re.fullmatch(r"[\w.:%~-]+", host) or len(host) > 253:
        raise UsageError(f"{which}: the URL names no host")
    names = set(_FIELD.findall(f"{parts.path}?{parts.query}"))
    if set("{}") & set(parts.netloc + _FIELD.sub("", f"{parts.path}?{parts.query}")) or not names <= set(FIELDS):
        raise UsageError(f"{which}: braces in the URL hold one of {_fields()}, after the host")
    base = f"{scheme}://{parts.netloc}{parts.path}"
    if names & {"outcome", "status"}:
        return Target("template", host, base, parts.query)
    path = _FIELD.sub("x", parts.path)
    for known, hosts, paths in () if dialect else _KNOWN:
        if re.fullmatch(hosts, host) and re.fullmatch(paths, path):
            dialect = known
            break
    return Target(dialect or "plain", host, base, parts.query)


def call(target: Target, ping: Ping, output: Ring | None = None, limit: int | None = None) -> Call | None:
    """The request that tells `ping`; None where the service has none for it. `limit`: the most bytes of body it reads."""
    values = {**ping.as_dict(), "duration": f"{ping.duration:.3f}"}

    def filled(text: str) -> str:
        return _FIELD.sub(lambda found: quote(str(values[found[1]]), safe="", errors="surrogateescape"), text)

    return _DIALECTS[target.dialect](target.but(base=filled(target.base), query=filled(target.query)), ping, output, limit)


def _healthchecks(target: Target, ping: Ping, output: Ring | None, limit: int | None) -> Call:
    """https://healthchecks.io/docs/http_api/: /start, the exit status as a path, rid= ties start and end together."""
    return _url(target, _suffix(ping), rid=ping.uuid), _body(ping, output, limit)


def _betterstack(target: Target, ping: Ping, output: Ring | None, limit: int | None) -> Call | None:
    """https://betterstack.com/docs/uptime/cron-and-heartbeat-monitor/: no start; any other request would count as success."""
    return (_url(target, _suffix(ping)), _body(ping, output, limit)) if ping.outcome else None


def _cronitor(target: Target, ping: Ping, output: Ring | None, _limit: int | None) -> Call:
    """https://cronitor.io/docs/telemetry-api: all of it in the query."""
    told = {"state": "run", "series": ping.uuid, "host": ping.host}
    if ping.outcome:
        said = output.last(IN_URL) if output else b""
        message = said if ping.well else _bytes(f"{ping.text}\n") + said
        told |= {"state": "complete" if ping.well else "fail", "status_code": str(ping.status), "metric": f"duration:{ping.duration:.3f}"}
        return _url(target, message=message.strip(), **told), ()
    return _url(target, **told), ()


def _kuma(target: Target, ping: Ping, output: Ring | None, _limit: int | None) -> Call | None:
    """Uptime Kuma's push monitors: status, msg, ping in milliseconds. No start: whatever comes is up or down."""
    if not ping.outcome:
        return None
    said = output.last(IN_URL) if output and not ping.well else b""
    message = b"OK" if ping.well else _bytes(ping.text) + (b": " + said.strip() if said.strip() else b"")
    return _url(target, status="up" if ping.well else "down", msg=message, ping=f"{ping.duration * 1000:.0f}"), ()


def _sentry(target: Target, ping: Ping, _output: Ring | None, _limit: int | None) -> Call:
    """https://docs.sentry.io/product/crons/getting-started/http/: one check-in, opened and closed by its id."""
    check_in = ping.uuid.replace("-", "")
    if not ping.outcome:
        return _url(target, status="in_progress", check_in_id=check_in), ()
    return _url(target, status="ok" if ping.well else "error", check_in_id=check_in, duration=f"{ping.duration:.3f}"), ()


def _plain(target: Target, ping: Ping, _output: Ring | None, _limit: int | None) -> Call | None:
    """Somebody's own: no start and no body, since an unknown service might take either for success."""
    return (_url(target, "" if ping.well else "/fail"), ()) if ping.outcome else None


def _template(target: Target, ping: Ping, _output: Ring | None, _limit: int | None) -> Call | None:
    """It says by itself how the run ended, so it is sent as it stands, once."""
    return (_url(target), ()) if ping.outcome else None


_DIALECTS: Mapping[str, Callable[[Target, Ping, Ring | None, int | None], Call | None]] = {
    "healthchecks": _healthchecks,
    "betterstack": _betterstack,
    "cronitor": _cronitor,
    "kuma": _kuma,
    "sentry": _sentry,
    "plain": _plain,
    "template": _template,
}


def _suffix(ping: Ping) -> str:
    if not ping.outcome:
        return "/start"
    if ping.well:
        return ""
    return f"/{ping.status}" if ping.status else "/fail"  # lost, but continued to a good end: /0 would mean success


def _url(target: Target, suffix: str = "", **told: str | bytes) -> str:
    """The user's own query stays, but for names that are told here."""
    base = target.base.rstrip("/") + suffix if suffix else target.base
    query = [part for part in target.query.split("&") if part and part.partition("=")[0] not in told]
    query += [f"{name}={quote(value, safe='')}" for name, value in told.items() if value]
    return base + ("?" + "&".join(query) if query else "")


def _body(ping: Ping, output: Ring | None, limit: int | None) -> tuple[Bytes, ...]:
    """The output's tail as it is; after it the reason of an end that the output does not explain."""
    if not ping.outcome:
        return ()
    reason = _bytes(f"cronlock: {ping.reason}\n") if ping.reason else b""
    if reason and output and output.last(1) != b"\n":
        reason = b"\n" + reason
    if limit is not None:
        reason, limit = reason[:limit], max(0, limit - len(reason))
    parts = output.parts(limit) if output else ()
    return (*parts, reason) if reason else parts


def _bytes(text: str) -> bytes:
    return text.encode(errors="backslashreplace")


def _fields() -> str:
    return " ".join(f"{{{name}}}" for name in FIELDS)


class Heartbeat:
    """An observer: hears that the command has started and ended, and tells every monitor."""

    def __init__(
        self, urls: Sequence[str], name: str, timeout: float, observe: Callable[[Event], None], output: Ring | None = None
    ) -> None:
        self._timeout, self._observe, self._output = timeout, observe, output
        self._monitors = [Monitor(parse(url, nth), timeout) for nth, url in enumerate(urls, 1)]
        self._ping = Ping(name, os.uname().nodename, *_identity(""))
        self._started: float | None = None
        self._duration: float | None = None

    def observe(self, event: Event) -> None:
        """Events of the run, also passed on."""
        if event.kind == "started":
            self._started = clock.now()
            run_id, uuid = _identity(str(event.fields.get("run_id", "")))
            self._ping = self._ping.but(run_id=run_id, uuid=uuid)
            for monitor in self._monitors:
                monitor.start(self._ping)
        elif event.kind == "ended" and self._started is not None:
            self._duration = clock.now() - self._started
        self._observe(event)

    def finish(self, outcome: Outcome) -> None:
        """The final ping: returns when every monitor has answered, or --heartbeat-timeout is over. Nothing for a run that was none."""
        if not outcome.ran:
            return
        until = clock.now() + max(self._timeout - MARGIN, self._timeout / 2)
        status = exits.status(outcome)
        ping = self._ping.but(outcome=outcome.word, status=status, duration=self._duration or 0.0, reason=reason(outcome, status))
        for monitor in self._monitors:
            monitor.end(ping, self._output, until)
        heard, lost = [], []
        for monitor in self._monitors:
            answer = monitor.answer(until)
            if answer == "":
                heard.append(monitor.host)
            else:
                lost.append(f"{monitor.host} ({'no answer' if answer is None else answer})")
        if heard:
            text = f"heartbeat: {', '.join(heard)} heard {ping.text}"
            self._observe(Event("heartbeat", "info", text, {"heard": heard}))
        if lost:
            took = durations.show(self._timeout)
            text = f"heartbeat lost: {', '.join(lost)}; tried within --heartbeat-timeout {took}, the run itself is not affected"
            self._observe(Event("heartbeat-lost", "warning", text, {"lost": lost}))


class Monitor:
    """One URL. Start and end each have a thread; the end waits for the start, but for half of its own time at most."""

    def __init__(self, target: Target, timeout: float) -> None:
        self.host = target.host
        self._target, self._timeout = target, timeout
        self._starting = threading.Event()  # set: no start ping is under way
        self._starting.set()
        self._ending = threading.Event()
        self._over = threading.Event()
        self._answer: str | None = None
        self._limit: int | None = None  # of the body, as the start ping's answer told it

    def start(self, ping: Ping) -> None:
        told = call(self._target, ping)
        if told is None:
            return
        until = clock.now() + self._timeout

        def tell() -> None:
            try:
                _, self._limit = deliver(told, until, self._timeout, self._ending)
            finally:
                self._starting.set()

        self._starting.clear()
        if not _in_background(tell):
            self._starting.set()

    def end(self, ping: Ping, output: Ring | None, until: float) -> None:
        self._ending.set()

        def tell() -> None:
            try:
                self._starting.wait(clock.left(until) / 2)
                told = call(self._target, ping, output, self._limit)
                if told:
                    self._answer, _ = deliver(told, until, self._timeout, threading.Event())
            finally:
                self._over.set()

        if not _in_background(tell):
            self._answer = "no thread could be started"
            self._over.set()

    def answer(self, until: float) -> str | None:
        """Of the final ping: empty if it was heard, else why not; None: nothing within the time."""
        self._over.wait(clock.left(until))
        return self._answer


def reason(outcome: Outcome, status: int) -> str:
    """What the status alone does not say."""
    word = outcome.word
    if word == "killed" and outcome.signal:
        return f"killed by {observers.signal_name(outcome.signal)}, status {status}"
    if word == "timed-out":
        return f"timed-out: stopped after --max-runtime {outcome.detail}, status {status}"
    if word == "lost":
        return f"lost: {outcome.detail if outcome.detail != 'continued' else 'the lock was lost, the command went on'}, status {status}"
    return f"{word}: {outcome.detail}, status {status}" if word == "failed" and outcome.detail else ""


def deliver(told: Call, until: float, timeout: float, give_up: threading.Event) -> tuple[str, int | None]:
    """Try until it is heard, refused for good, `give_up`, or there is no time for another try. Why it was lost, or "";
    and how long a body the service reads, if it says so. No error escapes: its text may hold the URL."""
    try:
        warnings.filterwarnings("ignore", module="requests")  # about versions of its parts: not a line for cron's mail
        import requests

        with requests.Session() as session:
            session.headers["User-Agent"] = f"cronlock/{__version__}"
            session.get_redirect_target = lambda resp: None  # type: ignore[method-assign] # it would read the answer's body
            return _deliver(session, told, until, timeout, give_up)
    except Exception as error:
        return f"failed with {type(error).__name__}", None


def _deliver(session: requests.Session, told: Call, until: float, timeout: float, give_up: threading.Event) -> tuple[str, int | None]:
    import requests

    url, body = told
    pause = FIRST_PAUSE
    while True:
        wait = 0.0
        try:
            answer = _request(session, url, body, until, timeout)
        except (requests.TooManyRedirects, requests.exceptions.InvalidSchema, requests.exceptions.InvalidURL) as error:
            return f"{type(error).__name__}", None
        except (requests.RequestException, OSError) as error:
            why = _why(error)
        else:
            code = answer.status_code
            if code < 400:
                return "", _number(answer.headers.get("Ping-Body-Limit"))
            why = f"answered {code}"
            if code == 413 and body:
                body = ()
                continue
            if code != 429 and code < 500:
                return why, None
            wait = _retry_after(answer.headers.get("Retry-After"))
            if wait:
                why += f" and asks to wait {durations.show(wait)}"
        wait = max(wait, pause * (0.75 + os.urandom(1)[0] / 512))
        pause *= 2
        if clock.left(until) <= wait or give_up.wait(wait):
            return why, None


def _request(session: requests.Session, url: str, body: tuple[Bytes, ...], until: float, timeout: float) -> requests.Response:
    """One try. Answers are closed unread: a body may be endless. So redirects are followed here, within http and https."""
    import requests

    for _ in range(REDIRECTS + 1):
        left = max(0.05, clock.left(until))
        answer = session.request(
            "POST" if body else "GET",
            url,
            data=Body(body) if body else None,
            headers={"Content-Type": "text/plain"} if body else None,
            timeout=(min(left, timeout / 3), min(left, timeout / 2)),
            stream=True,
            allow_redirects=False,
        )
        answer.close()
        to = requests.Session.get_redirect_target(session, answer)
        if not to:
            return answer
        url = urljoin(url, to)
        if not url.lower().startswith(("http://", "https://")):
            raise requests.exceptions.InvalidSchema
        if answer.status_code in (301, 302, 303):
            body = ()
    raise requests.TooManyRedirects


class Body:
    """The parts of a body, as a file for requests: joined, they would take their memory twice."""

    def __init__(self, parts: tuple[Bytes, ...]) -> None:
        self._parts = [memoryview(part) for part in parts]
        self._length = sum(len(part) for part in self._parts)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Body:  # requests asks for it, and then reads
        return self

    def read(self, size: int = -1) -> bytes:
        while self._parts and not self._parts[0]:
            del self._parts[0]
        if not self._parts:
            return b""
        first = self._parts[0]
        taken = bytes(first[:size] if size >= 0 else first)
        self._parts[0] = first[len(taken) :]
        return taken


def _why(error: BaseException) -> str:
    """In words without the URL: the system's own, if there are any below."""
    seen: list[BaseException] = []
    inner: object = error
    while isinstance(inner, BaseException) and inner not in seen and len(seen) < 20:
        seen.append(inner)
        below = [getattr(inner, "reason", None), *inner.args, inner.__cause__, inner.__context__]
        inner = next((e for e in below if isinstance(e, BaseException) and e not in seen), None)
    names = " ".join(type(e).__name__ for e in seen)
    if "SSL" in names:
        return "TLS failed"
    if "Proxy" in names:
        return "the proxy failed"
    for e in reversed(seen):
        if isinstance(e, OSError) and e.errno is not None and e.strerror:
            return e.strerror.lower()
    return "no connection" if "ConnectTimeout" in names else "no answer" if "Timeout" in names else "no sensible answer"


def _retry_after(text: str | None) -> float:
    """Seconds; RFC 9110 allows a date as well."""
    seconds = _number(text)
    if seconds is not None or not text:
        return float(seconds or 0)
    from email.utils import parsedate_to_datetime

    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - clock.wall())
    except (ValueError, OverflowError):
        return 0.0


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else None


def _identity(run_id: str) -> tuple[str, str]:
    """The run's id, and a UUID that begins with it: who reads a monitor finds the run in the log."""
    run_id = run_id or os.urandom(4).hex()
    rest = os.urandom(12).hex()
    return run_id, f"{run_id}-{rest[:4]}-4{rest[4:7]}-8{rest[7:10]}-{rest[10:22]}"


def _in_background(work: Callable[[], None]) -> bool:
    """In a daemon thread, which no signal is delivered to. False: there is no room for one."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        threading.Thread(target=work, daemon=True).start()
    except RuntimeError:
        return False
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return True
