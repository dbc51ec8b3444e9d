"""Whatever comes in, a defined answer comes out: 100,000 of each with `pytest tests/test_fuzz.py --fuzz 100000`, fewer without."""

from __future__ import annotations

import io
from contextlib import redirect_stdout, suppress

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cronlock import config, exits, manual, state
from cronlock.arguments import plain, understand
from cronlock.backends.flock import FlockBackend
from cronlock.ctl import history, status
from cronlock.errors import ConfigError, CronlockError
from cronlock.model import Busy, Done, Grant, Run
from cronlock.options import OPTIONS
from cronlock.registry import MODULES, open_backend
from cronlock.testing import soon
from fixtures_store import Listener

STATUSES = {exits.USAGE, exits.CONFIG, exits.PERMISSION, exits.UNAVAILABLE}
TEXT = st.text(st.characters(codec=None, exclude_characters="\0"), max_size=30)
HINTS = [
    "5m",
    "1h30m",
    "inf",
    "-1",
    "1e9",
    "64k",
    "::",
    "//",
    "@",
    "%",
    "%zz",
    "?",
    "&",
    "=",
    "[",
    "]",
    "[::1]",
    "${X}",
    "${",
    "}",
    "\n",
    "\x1b[31m",
    "\udc80",
    "..",
    "/",
]
PIECES = st.lists(
    st.sampled_from([*HINTS, "host", "user", "password", "prefix", "ttl", "0", "65536", "#", ";", ",", "é", " "]) | TEXT, max_size=8
).map("".join)
URLS = st.builds("{}{}{}".format, st.sampled_from([*MODULES, "http", ""]), st.sampled_from([":", "://", ":///", ""]), PIECES)
OPTION_WORDS = [f"-{letter}" for option in OPTIONS for letter in option.letters] + [f"--{option.name}" for option in OPTIONS]
WORDS = (
    st.sampled_from([*OPTION_WORDS, *HINTS, "--", "-", "name", "true"])
    | TEXT
    | st.builds("{}={}".format, st.sampled_from(OPTION_WORDS), PIECES)
)
ENVIRON = st.dictionaries(st.sampled_from([option.variable for option in OPTIONS if option.name != "config"]), PIECES, max_size=3)
RUN = Run("0badcafe", "f" * 32, "web1", 4711, "deploy", "dump.sh", 1790000000.0, fence=7)
GRANT = Grant("job", RUN.but(token="e" * 32), 60.0)


@pytest.fixture
def times(request):
    number = request.config.getoption("--fuzz")
    return settings(max_examples=number, suppress_health_check=list(HealthCheck), database=None)


def refused(error: CronlockError) -> None:
    assert exits.status(error) in STATUSES, error
    assert str(error)


def test_command_lines(times):
    @times
    @given(st.lists(WORDS, max_size=8), ENVIRON)
    def check(argv, environ):
        environ["XDG_CONFIG_HOME"] = "/nonexistent"
        try:
            with redirect_stdout(io.StringIO()):
                found = plain(argv) or manual.parse(argv)
            if found:
                values, _ = config.settle(found[0], found[1][0] if found[1] else "", environ)
                job, url = understand(values, found[1], environ)
                assert job.name
                open_backend(url).close()
        except CronlockError as error:
            refused(error)

    check()


def test_urls(times):
    @times
    @example("redis://\ud800%/")
    @given(URLS)
    def check(url):
        try:
            backend = open_backend(url)
        except CronlockError as error:
            refused(error)
        else:
            backend.close()

    check()


def test_a_password_never_shows(times):
    """Whatever stands around it, and however broken the URL is."""

    @times
    @given(st.sampled_from(["redis", "rediss", "postgresql", "postgres", "valkey"]), PIECES, PIECES, PIECES)
    def check(scheme, user, host, rest):
        secret = "pa55-w0rd"
        for url in (f"{scheme}://{user}:{secret}@{host}/{rest}", f"{scheme}://{host}/{rest}?password={secret}"):
            try:
                backend = open_backend(url)
                shown = backend.where + str(getattr(backend, "__dict__", {}).get("warnings"))
                backend.close()
            except CronlockError as error:
                shown = str(error)
            assert secret not in shown, (url, shown)

    check()


TOML = st.lists(
    st.sampled_from(
        [
            "[defaults]",
            "[backends]",
            "[locks.job]",
            '[locks."a b"]',
            "[x]",
            'main = "redis://h"',
            "ttl = 5",
            'ttl = "5m"',
            "wait = inf",
            "prefer = []",
        ]
    )
    | st.builds(
        "{} = {}".format,
        st.sampled_from([o.name for o in OPTIONS] + ["zzz", '"a b"']),
        st.sampled_from(["1", "true", "[1]", "{}", "1979-05-27", "nan", '"x"']) | TEXT.map(repr),
    )
    | PIECES,
    max_size=8,
).map("\n".join)


def test_configs(times, tmp_path):
    path = tmp_path / "c.toml"
    path.touch(0o600)

    @times
    @given(TOML.map(lambda text: text.encode(errors="surrogatepass")) | st.binary(max_size=60))
    def check(text):
        path.write_bytes(text)
        with suppress(ConfigError, CronlockError):
            values, sources = config.settle({"config": str(path)}, "job", {"X": "y"})
            assert set(values) == set(sources) == {option.key for option in OPTIONS}

    check()


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=6,
)
GOOD = state.encode(state.State(fence=7, run=RUN, claims=(RUN.but(label="1h 2026"),)))


@st.composite
def a_record(draw):
    """One of ours with a value exchanged, cut off, or nothing of the kind."""
    raw = state.loads(GOOD)
    for key in draw(st.lists(st.sampled_from(["v", "fence", "held", "claims", "run"]), max_size=2)):
        raw[key] = draw(JUNK)
    if isinstance(raw.get("run"), dict):
        for key in draw(st.lists(st.sampled_from(sorted(RUN.as_dict())), max_size=3)):
            raw["run"][key] = draw(JUNK)
    text = state.dumps(raw).encode()
    return draw(st.just(text) | st.just(text[: draw(st.integers(0, 200))]) | st.binary(max_size=40) | st.just(text + text))


def test_records(times, tmp_path):
    backend = FlockBackend(str(tmp_path))
    lock, runs = tmp_path / "job.lock", tmp_path / "job.runs"

    @times
    @given(a_record(), a_record())
    def check(text, line):
        lock.write_bytes(text)
        runs.write_bytes(line + b"\n")
        shown = status.look(backend, "job")
        page = status.page(shown) + status.table([shown]) + history.table(backend.history("job", soon()))
        assert not any(ord(letter) < 32 and letter != "\n" for letter in page.replace("\x1b[", ""))
        try:
            answer = backend.try_acquire(GRANT, soon())
        except ConfigError:  # a newer format
            return
        if not isinstance(answer, (Busy, Done)):
            assert answer.run.fence > 0
            answer.release(answer.run.but(outcome="ok", status=0, end=1790000001.0), soon())
            assert state.decode(lock.read_bytes()).fence >= answer.run.fence

    check()


@pytest.fixture
def liar():
    """A server that answers everything with `liar.says`, and hangs up."""

    class Liar(Listener):
        says = b""

        def lie(self, sock):
            with sock, suppress(OSError):
                sock.settimeout(5)
                sock.recv(65536)
                sock.sendall(self.says)

    one = Liar(lambda sock: one.lie(sock))
    yield one
    one.close()


RESP = st.lists(
    st.sampled_from(
        [
            b"+OK\r\n",
            b"-ERR x\r\n",
            b"-NOPERM x\r\n",
            b":1\r\n",
            b"$-1\r\n",
            b"$3\r\nabc\r\n",
            b"*2\r\n",
            b"*-1\r\n",
            b"%1\r\n",
            b"_\r\n",
            b"$99999999999\r\n",
            b"\r\n",
        ]
    )
    | st.binary(max_size=20),
    max_size=8,
).map(b"".join)
PACKETS = st.lists(
    st.builds(
        lambda kind, size, body: kind + size.to_bytes(4) + body,
        st.sampled_from([b"R", b"E", b"S", b"K", b"Z", b"T", b"D", b"C", b"N"]),
        st.integers(0, 2**32 - 1) | st.integers(4, 30),
        st.binary(max_size=30),
    )
    | st.binary(max_size=20),
    max_size=6,
).map(b"".join)


@pytest.mark.parametrize(("scheme", "replies"), [("redis", RESP), ("postgresql", PACKETS)])
def test_replies(times, liar, scheme, replies):
    """A hundredth of the others: each is a connection."""

    @settings(times, max_examples=max(30, times.max_examples // 100))
    @given(replies)
    def check(says):
        liar.says = says
        backend = open_backend(f"{scheme}://u:p@127.0.0.1:{liar.port}/?connect_timeout=2")
        try:
            answer = backend.try_acquire(GRANT, soon())
            assert isinstance(answer, (Busy, Done)), "nobody grants a lock in such words"
        except CronlockError as error:
            refused(error)
        finally:
            backend.close()

    check()
