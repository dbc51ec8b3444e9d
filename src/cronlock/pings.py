"""What a monitor is told, and how: each service's own calls, tried until they are heard or the time is over.

Imported when the command runs: requests and threads come here and nowhere else. Of a ping URL nothing but the host is
ever printed. The calls are the services' documented ones: Healthchecks' pinging API, Cronitor's telemetry API, Better Stack's
heartbeats, Uptime Kuma's push monitors, Sentry's cron check-ins over HTTP.
"""

from __future__ import annotations

import os
import re
import threading
import warnings
from urllib.parse import quote, urljoin, urlsplit

from cronlock import __version__, clock, durations
from cronlock.lean import signal
from cronlock.model import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import requests

    from cronlock.heartbeat_url import Target
    from cronlock.tail import Ring

    Bytes = bytes | memoryview
    Call = tuple[str, tuple[Bytes, ...]]  # the URL, and the body in parts; without one it is a GET

FIRST_PAUSE = 0.5  # seconds before the second try; doubled before each further one
REDIRECTS = 5
IN_URL = 1000  # bytes of output that travel in a URL: servers refuse URLs of more than about 8 kB

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


def recognised(target: Target) -> Target:
    """Whose URL it is, by its host or, for what people run themselves, by its path."""
    if target.dialect:
        return target
    path = _FIELD.sub("x", urlsplit(target.base).path)
    found = (name for name, hosts, paths in _KNOWN if re.fullmatch(hosts, target.host) and re.fullmatch(paths, path))
    return target.but(dialect=next(found, "plain"))


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
    """https://docs.sentry.io/product/crons/getting-started/http/: one check-in, opened and closed by its id. `duration`, in
    seconds, is in no page of theirs, but what receives check-ins reads it (MonitorQuery in getsentry/relay's monitor.rs)."""
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


class Monitor:
    """One URL. Start and end each have a thread; the end waits for the start, but for half of its own time at most."""

    def __init__(self, target: Target, timeout: float) -> None:
        self.host = target.host
        self._target, self._timeout = recognised(target), timeout
        self._starting = threading.Event()  # set: no start ping is under way
        self._starting.set()
        self._ending = threading.Event()
        self._late = threading.Event()  # set: a start that is not on its way by now would come after the end
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
                _, self._limit = deliver(told, until, self._timeout, self._ending, self._late)
            finally:
                self._starting.set()

        self._starting.clear()
        if not _in_background(tell):
            self._starting.set()

    def end(self, ping: Ping, output: Ring | None, until: float) -> None:
        self._ending.set()

        def tell() -> None:
            try:
                if not self._starting.wait(clock.left(until) / 2):
                    self._late.set()
                told = call(self._target, ping, output, self._limit)
                if told:
                    self._answer, _ = deliver(told, until, self._timeout, threading.Event(), threading.Event())
            finally:
                self._over.set()

        if not _in_background(tell):
            self._answer = "no thread could be started"
            self._over.set()

    def answer(self, until: float) -> str | None:
        """Of the final ping: empty if it was heard, else why not; None: nothing within the time."""
        self._over.wait(clock.left(until))
        return self._answer


def deliver(told: Call, until: float, timeout: float, give_up: threading.Event, late: threading.Event) -> tuple[str, int | None]:
    """Try until it is heard, refused for good, there is no time for another try, or after the try in which `give_up` was set;
    not even once after `late`. Why it was lost, or "";
    and how long a body the service reads, if it says so. No error escapes: its text may hold the URL."""
    try:
        warnings.filterwarnings("ignore", module="requests")  # about versions of its parts: not a line for cron's mail
        import requests

        with requests.Session() as session:
            session.headers["User-Agent"] = f"cronlock/{__version__}"
            session.get_redirect_target = lambda resp: None  # type: ignore[method-assign] # it would read the answer's body
            return _deliver(session, told, until, timeout, give_up, late)
    except Exception as error:
        return f"failed with {type(error).__name__}", None


def _deliver(
    session: requests.Session, told: Call, until: float, timeout: float, give_up: threading.Event, late: threading.Event
) -> tuple[str, int | None]:
    import requests

    url, body = told
    pause = FIRST_PAUSE
    while not late.is_set():
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
    return "too late", None


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


def identity(run_id: str) -> tuple[str, str]:
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
