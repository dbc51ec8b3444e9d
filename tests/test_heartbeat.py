"""Heartbeats against a real HTTP server: what each dialect asks for, exactly, and what a bad monitor can't do."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cronlock import clock, pings, tree
from cronlock.errors import UsageError
from cronlock.heartbeat import Heartbeat
from cronlock.heartbeat_url import parse
from cronlock.model import Event, Outcome
from cronlock.pings import Ping, call, recognised
from cronlock.tail import Ring
from fixtures_monitor import LIMIT, Server
from fixtures_store import Started, alive, until

Start = Callable[..., Started]
Finish = Callable[..., tuple[int, str, str]]

CHECK = "/ping/0c70cd54-1a3c-4fd5-8f0c-0123456789ab"
SLACK = 3.0  # seconds that a busy machine may add
TOKEN = "s3cr3t-t0k3n"


@pytest.fixture(autouse=True)
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Local files: no monitor cares where the lock lives."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return f"flock://{tmp_path}/locks"


def open_files(pid: int) -> list[str]:
    try:
        return [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
    except OSError:
        return []


def plain_log(server: Server) -> list[str]:
    """The log, with what is different in every run named: UUIDs (the same one the same letter), durations."""
    known: dict[str, str] = {}

    def letter(found: re.Match[str]) -> str:
        return known.setdefault(found[0].replace("-", ""), "ABCDEFGH"[len(known)])

    text = "\n".join(str(r) for r in server.log).replace(os.uname().nodename, "HOST")
    text = text.replace(CHECK, "/CHECK")
    text = re.sub(r"\b[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}\b", letter, text)
    return re.sub(r"(duration[=:/]|duration%3A|ping=)[\d.]+", r"\1D", text).splitlines()


# what a URL means


@given(st.one_of(st.text(), st.text().map("https://".__add__), st.text(alphabet="htps:/@[]{}%?#&=.-1az\udc80 é").map("http://".__add__)))
def test_any_text_is_a_target_or_a_usage_error(text: str) -> None:
    try:
        target = parse(text)
    except UsageError:
        return
    for outcome in ("", "ok", "failed"):
        told = call(recognised(target), Ping("n\udc80", "h", "r", "u", outcome), Ring(10))
        assert told is None or told[0].startswith(("http://", "https://"))
        assert told is not None or not outcome


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "x", "ftp://h/x", "https://", "http:///x", "http://127.0.0.1:99999/x", "http://h:0/", "http://h:x/", "http://[::1/x"),
        *("https://h/{what}", "https://h/{}", "https://h/{status", "https://h/}", "https://{host}/x", "https://h/a b", "https://h/\n"),
    ],
)
def test_a_url_that_is_none_is_a_usage_error_before_anything_runs(finish: Finish, locks: str, tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError):
        parse(text)
    if text in ("", "http://127.0.0.1:99999/x", "https://h/{what}"):
        code, out, err = finish("--heartbeat", text, "j", "touch", f"{tmp_path}/ran", backend=locks)
        assert (code, out, err.count("\n")) == (64, "", 1)
        assert not (tmp_path / "ran").exists()


def test_the_dialect_is_known_by_the_url() -> None:
    assert {
        text: recognised(parse(text)).dialect
        for text in (
            "https://hc-ping.com/0c70cd54-1a3c-4fd5-8f0c-0123456789ab",
            "https://hc-ping.com/fqOOd6-F4MMNuCEnzTU01w/db-backup?create=1",
            f"https://hc.example.org/sub{CHECK}",
            "https://hc.example.org/ping/fqOOd6-F4MMNuCEnzTU01w/{name}",
            "hc+https://example.org/anything",
        )
    } == dict.fromkeys(
        (
            "https://hc-ping.com/0c70cd54-1a3c-4fd5-8f0c-0123456789ab",
            "https://hc-ping.com/fqOOd6-F4MMNuCEnzTU01w/db-backup?create=1",
            f"https://hc.example.org/sub{CHECK}",
            "https://hc.example.org/ping/fqOOd6-F4MMNuCEnzTU01w/{name}",
            "hc+https://example.org/anything",
        ),
        "healthchecks",
    )
    for text, dialect in {
        "https://cronitor.link/p/KEY/nightly": "cronitor",
        "https://cronitor.io/p/KEY/nightly": "cronitor",
        "https://uptime.betterstack.com/api/v1/heartbeat/TOK": "betterstack",
        "https://betteruptime.com/api/v1/heartbeat/TOK": "betterstack",
        "https://kuma.example.org/api/push/TOK?status=up&msg=OK&ping=": "kuma",
        "https://o1.ingest.sentry.io/api/2/cron/nightly/KEY/": "sentry",
        "https://hc-ping.com.example.org/x": "plain",
        "https://notbetterstack.com/api/v1/heartbeat/TOK": "plain",
        "https://example.org/ping/not-a-uuid": "plain",
        "https://example.org/{name}": "plain",
        "https://example.org/{name}/{outcome}": "template",
        "https://kuma.example.org/api/push/TOK?msg={outcome}": "template",
    }.items():
        assert recognised(parse(text)).dialect == dialect, text


# what is asked for, through a proxy where a dialect is known by its host

FAILED, KILLED = "failed%2C%20status%203", "killed%20by%20SIGKILL%2C%20status%20137"
DIALECTS = {
    CHECK: [
        "GET /CHECK/start?rid=A",
        "GET /CHECK?rid=A",
        "GET /CHECK/start?rid=B",
        "GET /CHECK/3?rid=B",
        "GET /CHECK/start?rid=C",
        "POST /CHECK/137?rid=C b'cronlock: killed by SIGKILL, status 137\\n'",
    ],
    "http://hc-ping.com/KEY/{name}?create=1": [
        "GET http://hc-ping.com/KEY/job/start?create=1&rid=A",
        "GET http://hc-ping.com/KEY/job?create=1&rid=A",
        "GET http://hc-ping.com/KEY/job/start?create=1&rid=B",
        "GET http://hc-ping.com/KEY/job/3?create=1&rid=B",
        "GET http://hc-ping.com/KEY/job/start?create=1&rid=C",
        "POST http://hc-ping.com/KEY/job/137?create=1&rid=C b'cronlock: killed by SIGKILL, status 137\\n'",
    ],
    "http://cronitor.link/p/KEY/job?env=prod&state=x": [
        "GET http://cronitor.link/p/KEY/job?env=prod&state=run&series=A&host=HOST",
        "GET http://cronitor.link/p/KEY/job?env=prod&state=complete&series=A&host=HOST&status_code=0&metric=duration%3AD",
        "GET http://cronitor.link/p/KEY/job?env=prod&state=run&series=B&host=HOST",
        f"GET http://cronitor.link/p/KEY/job?env=prod&message={FAILED}&state=fail&series=B&host=HOST&status_code=3&metric=duration%3AD",
        "GET http://cronitor.link/p/KEY/job?env=prod&state=run&series=C&host=HOST",
        f"GET http://cronitor.link/p/KEY/job?env=prod&message={KILLED}&state=fail&series=C&host=HOST&status_code=137&metric=duration%3AD",
    ],
    "http://uptime.betterstack.com/api/v1/heartbeat/TOK": [
        "GET http://uptime.betterstack.com/api/v1/heartbeat/TOK",
        "GET http://uptime.betterstack.com/api/v1/heartbeat/TOK/3",
        "POST http://uptime.betterstack.com/api/v1/heartbeat/TOK/137 b'cronlock: killed by SIGKILL, status 137\\n'",
    ],
    "/api/push/TOK?status=up&msg=OK&ping=": [
        "GET /api/push/TOK?status=up&msg=OK&ping=D",
        f"GET /api/push/TOK?status=down&msg={FAILED}&ping=D",
        f"GET /api/push/TOK?status=down&msg={KILLED}&ping=D",
    ],
    "/api/2/cron/nightly/KEY/?environment=dev": [
        "GET /api/2/cron/nightly/KEY/?environment=dev&status=in_progress&check_in_id=A",
        "GET /api/2/cron/nightly/KEY/?environment=dev&status=ok&check_in_id=A&duration=D",
        "GET /api/2/cron/nightly/KEY/?environment=dev&status=in_progress&check_in_id=B",
        "GET /api/2/cron/nightly/KEY/?environment=dev&status=error&check_in_id=B&duration=D",
        "GET /api/2/cron/nightly/KEY/?environment=dev&status=in_progress&check_in_id=C",
        "GET /api/2/cron/nightly/KEY/?environment=dev&status=error&check_in_id=C&duration=D",
    ],
    "/own/{name}/?k=v": ["GET /own/job/?k=v", "GET /own/job/fail?k=v", "GET /own/job/fail?k=v"],
    "/t/{outcome}/{status}/{host}?duration={duration}&n={name}": [
        "GET /t/ok/0/HOST?duration=D&n=job",
        "GET /t/failed/3/HOST?duration=D&n=job",
        "GET /t/killed/137/HOST?duration=D&n=job",
    ],
}


@pytest.mark.parametrize("url", DIALECTS)
def test_each_dialect_asks_exactly_this(finish: Finish, locks: str, monitor: Server, url: str) -> None:
    env = {"http_proxy": monitor.url} if url.startswith("http") else {}
    full = url if url.startswith("http") else monitor.url + url
    for script, code in (("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137)):
        assert finish("-q", "--heartbeat", full, "job", "-c", script, backend=locks, env=env)[0] == code
    assert plain_log(monitor) == DIALECTS[url]
    assert {r.headers["user-agent"].partition("/")[0] for r in monitor.log} == {"cronlock"}


def test_the_unhappy_ends_are_failures_with_a_reason(finish: Finish, start: Start, locks: str, monitor: Server, tmp_path: Path) -> None:
    ping = ("--heartbeat", monitor.url + CHECK)
    assert finish("--max-runtime", "0.3", *ping, "a", "sleep", "290", backend=locks)[0] == 124
    assert finish(*ping, "b", "/no/such", backend=locks)[0] == 127
    (tmp_path / "text").write_text("x")
    assert finish(*ping, "c", f"{tmp_path}/text", backend=locks)[0] == 126
    job = start(*ping, "d", "sh", "-c", "touch $T/up; exec sleep 291", backend=locks)
    until((tmp_path / "up").exists)
    job.send_signal(signal.SIGTERM)
    assert job.end()[0] == 143
    job = start(*ping, "e", "sh", "-c", "touch $T/up2; exec sleep 292", backend=locks)
    until((tmp_path / "up2").exists)
    os.unlink(tmp_path / "locks/e.lock")
    assert job.end()[0] == 76
    log = plain_log(monitor)
    assert [line.partition("?")[0] for line in log] == [
        *("GET /CHECK/start", "POST /CHECK/124"),
        *("POST /CHECK/127", "POST /CHECK/126"),
        *("GET /CHECK/start", "POST /CHECK/143", "GET /CHECK/start", "POST /CHECK/76"),
    ]
    bodies = [r.body for r in monitor.log if r.body]
    assert [body.split(b":")[1].split()[0] for body in bodies] == [b"timed-out", b"failed", b"failed", b"killed", b"lost"]
    assert bodies[3] == b"cronlock: killed by SIGTERM, status 143\n"


def test_the_reason_of_a_command_that_is_not_found_keeps_path_at_home(finish: Finish, locks: str, monitor: Server) -> None:
    code, _, err = finish("--heartbeat", monitor.url + CHECK, "j", "no-such", backend=locks, env={"PATH": "/bin:/secret/place"})
    assert code == 127 and "PATH=/bin:/secret/place" in err
    assert [r.body for r in monitor.log] == [b"cronlock: failed: no-such: command not found, status 127\n"]


def test_lost_but_continued_to_a_good_end_is_a_failure(monitor: Server) -> None:
    """The exit status is the command's own 0, which as a path would mean success."""
    events: list[Event] = []
    Heartbeat([monitor.url + CHECK], "n", 5, events.append).finish(Outcome("lost", 0, detail="continued"))
    assert [r.path for r in monitor.log] == [CHECK + "/fail"]


def test_who_does_not_run_pings_nothing(start: Start, finish: Finish, locks: str, monitor: Server, tmp_path: Path) -> None:
    ping = ("--heartbeat", monitor.url + CHECK)
    holder = start("j", "sh", "-c", "touch $T/up; exec sleep 290", backend=locks)
    until((tmp_path / "up").exists)
    assert finish(*ping, "j", "true", backend=locks) == (75, "", "")
    waiter = start("-w", "60", *ping, "j", "true", backend=locks)
    until(lambda: waiter.poll() is None and f"{tmp_path}/locks/j.lock" in open_files(waiter.pid))
    waiter.send_signal(signal.SIGTERM)
    assert waiter.end()[0] == 143
    assert finish("--once-per", "1d", "d", "true", backend=locks)[0] == 0
    assert finish("--once-per", "1d", *ping, "d", "true", backend=locks)[0] == 75
    away = "redis://127.0.0.1:1?connect_timeout=1"
    assert finish(*ping, "u", "true", backend=away)[0] == 69
    assert finish("--on-unavailable", "skip", *ping, "u", "true", backend=away)[0] == 75
    assert monitor.connections == 0
    assert finish("--on-unavailable", "run", *ping, "u", "true", backend=away)[0] == 0
    assert plain_log(monitor) == ["GET /CHECK/start?rid=A", "GET /CHECK?rid=A"]
    holder.send_signal(signal.SIGTERM)


def test_the_run_id_of_the_log_begins_the_monitors(finish: Finish, locks: str, monitor: Server) -> None:
    _, out, _ = finish("--heartbeat", monitor.url + CHECK, "j", "sh", "-c", "echo $CRONLOCK_RUN_ID $CRONLOCK_HEARTBEAT", backend=locks)
    assert [r.query["rid"][:9] for r in monitor.log] == [f"{out.strip()}-"] * 2


def test_the_environment_names_several_and_the_command_sees_none(finish: Finish, locks: str, monitor: Server, another: Server) -> None:
    env = {"CRONLOCK_HEARTBEAT": f"{monitor.url}/a?x=1,2 {another.url}/b"}
    assert finish("j", "sh", "-c", 'echo "<$CRONLOCK_HEARTBEAT>"', backend=locks, env=env) == (0, "<>\n", "")
    assert ([r.target for r in monitor.log], [r.target for r in another.log]) == (["/a?x=1,2"], ["/b"])
    assert finish("--heartbeat", f"{another.url}/c", "j", "true", backend=locks, env=env)[0] == 0  # argv beats environment
    assert (len(monitor.log), [r.target for r in another.log]) == (1, ["/b", "/c"])


def test_no_fork_leaves_nobody_to_ping(finish: Finish, locks: str) -> None:
    assert finish("-F", "--heartbeat", "http://127.0.0.1:1/", "j", "true", backend=locks)[0] == 64


# monitors that are dead, slow or lying


@pytest.mark.parametrize(
    ("path", "asked", "lost"),
    [
        ("/500/500/200", 3, False),
        ("/429/200", 2, False),
        ("/404", 1, True),
        ("/410", 1, True),
        ("/wait/1", 2, False),
        ("/wait/600", 1, True),
        ("/redirect/redirect/there", 3, False),
        ("/elsewhere", 1, True),
        ("/round", 6, True),
        ("/503", range(2, 4), True),
        ("/reset", range(2, 4), True),
        ("/garbage", range(2, 4), True),
        ("/hang", range(1, 3), True),
        ("/trickle", range(1, 3), True),
        ("/endless", range(2, 3), False),
    ],
)
def test_tries_are_made_where_they_can_help(finish: Finish, locks: str, monitor: Server, path: str, asked: int | range, lost: bool) -> None:
    began = time.monotonic()
    ping = ("--heartbeat", f"{monitor.url}{path}", "--heartbeat-timeout", "3")
    code, out, err = finish(*ping, "j", "sh", "-c", "exit 0", backend=locks)
    took = time.monotonic() - began
    assert (code, out, err.count("\n")) == (0, "", int(lost)), err
    assert len(monitor.log) in (asked if isinstance(asked, range) else [asked]), monitor.lines
    assert took < 3 + SLACK
    if path == "/wait/1":
        assert monitor.log[1].at - monitor.log[0].at >= 1
    if path == "/500/500/200":
        pauses = [b.at - a.at for a, b in zip(monitor.log, monitor.log[1:], strict=False)]
        assert 0.3 < pauses[0] < pauses[1]
    if path in ("/404", "/wait/600", "/elsewhere"):
        assert took < 1 + SLACK


def test_two_monitors_do_not_wait_for_each_other(finish: Finish, locks: str, monitor: Server, another: Server) -> None:
    ping = ("--heartbeat", monitor.url + "/hang", "--heartbeat", another.url + CHECK, "--heartbeat-timeout", "2")
    code, _, err = finish(*ping, "j", "false", backend=locks)
    assert (code, err.count("\n")) == (1, 1)
    assert another.lines == [f"GET {CHECK}/start", f"GET {CHECK}/1"]
    assert another.log[1].at < monitor.log[0].at + 1


def test_of_a_url_only_the_host_is_printed(finish: Finish, locks: str, monitor: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        closed = taken.getsockname()[1]
    port = monitor.port
    for url in (
        f"http://127.0.0.1:{port}/{TOKEN}",
        f"http://u:{TOKEN}@127.0.0.1:{port}/404/{TOKEN}?k={TOKEN}",
        f"http://127.0.0.1:{closed}/{TOKEN}",
        f"http://127.0.0.1:{port}/round/{TOKEN}",
        f"http://127.0.0.1:{port}/garbage/{TOKEN}",
        f"http://no-such.invalid/{TOKEN}",
        f"http://127.0.0.1:99999/{TOKEN}",
        f"http://127.0.0.1/{TOKEN}/{{no}}",
        f"nonsense-{TOKEN}",
    ):
        code, out, err = finish("-v", "--heartbeat-timeout", "0.7", "--heartbeat", url, "j", "true", backend=locks)
        assert code in (0, 64)
        assert TOKEN not in out + err
        assert err.count("heartbeat") >= 1, err
        if code == 0:
            assert ("127.0.0.1" in err or "no-such.invalid" in err) and sum("heartbeat" in line for line in err.splitlines()) == 1


def test_https_by_the_usual_variable(finish: Finish, locks: str, tls_monitor: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate of an authority that only REQUESTS_CA_BUNDLE knows."""
    ping = ("--heartbeat", tls_monitor.url + CHECK, "--heartbeat-timeout", "3")
    assert finish(*ping, "j", "sh", "-c", "exit 4", backend=locks, env={"REQUESTS_CA_BUNDLE": tls_monitor.ca}) == (4, "", "")
    assert tls_monitor.lines == [f"GET {CHECK}/start", f"GET {CHECK}/4"]
    code, _, err = finish(*ping, "j", "sh", "-c", "exit 4", backend=locks)
    assert (code, err.count("\n")) == (4, 1) and "127.0.0.1 (TLS failed)" in err
    assert len(tls_monitor.log) == 2


def test_proxies_by_the_usual_variables(finish: Finish, locks: str, monitor: Server, another: Server) -> None:
    """A proxy for https is asked for a tunnel, and sees no path; no_proxy keeps a host out."""
    proxy = {"HTTPS_PROXY": monitor.url, "http_proxy": monitor.url, "no_proxy": "127.0.0.1"}
    ping = ("--heartbeat-timeout", "2", "--heartbeat", f"https://hc-ping.com/{TOKEN}", "--heartbeat", another.url + "/direct")
    code, _, err = finish(*ping, "j", "true", backend=locks, env=proxy)
    assert code == 0 and "hc-ping.com (" in err and TOKEN not in err
    assert {str(r) for r in monitor.log} == {"CONNECT hc-ping.com:443"}
    assert another.lines == ["GET /direct"]


def test_quiet_is_quiet_about_it(finish: Finish, locks: str, monitor: Server) -> None:
    assert finish("-q", "--heartbeat", monitor.url + "/404", "j", "true", backend=locks) == (0, "", "")


def test_a_start_that_hangs_delays_nothing_and_the_end_comes_after_it(start: Start, finish: Finish, locks: str, monitor: Server) -> None:
    ping = ("--heartbeat", f"{monitor.url}/hang-start{CHECK}", "--heartbeat-timeout", "2")
    job = start(*ping, "j", "sh", "-c", "date +%s.%N; exit 5", backend=locks)
    code, out, err = job.end()
    assert (code, err) == (5, "")
    assert [r.path.rpartition("/")[2] for r in monitor.log][-1] == "5"
    assert {r.path.rpartition("/")[2] for r in monitor.log[:-1]} == {"start"}
    assert monitor.log[-1].at - float(out) < 2 + SLACK


def test_a_start_that_has_not_left_by_the_end_never_does(monitor: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that is too busy to run its thread: a start after the end would mean that the job runs, and for ever."""
    work: list[Callable[[], None]] = []
    run = pings._in_background
    monkeypatch.setattr(pings, "_in_background", lambda tell: bool(work.append(tell)) or True)
    one = pings.Monitor(parse(monitor.url + CHECK), 5)
    ping = Ping("n", "h", "r", "u")
    one.start(ping)
    monkeypatch.setattr(pings, "_in_background", run)
    one.end(ping.but(outcome="ok"), None, clock.now() + 1)
    assert one.answer(clock.now() + 5) == ""
    work[0]()
    assert monitor.lines == [f"GET {CHECK}"]


def test_the_lock_is_free_while_the_final_ping_hangs(start: Start, finish: Finish, locks: str, monitor: Server) -> None:
    job = start("--heartbeat", monitor.url + "/hang", "--heartbeat-timeout", "4", "j", "true", backend=locks)
    until(lambda: monitor.log)
    assert finish("j", "true", backend=locks)[0] == 0
    assert job.poll() is None
    job.send_signal(signal.SIGTERM)  # the run is over: this changes nothing any more
    assert job.end()[0] == 0


def test_a_name_look_up_that_hangs_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, release = threading.Event(), threading.Event()

    def getaddrinfo(*_: object, **__: object) -> object:
        asked.set()
        release.wait(60)
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    events: list[Event] = []
    began = time.monotonic()
    Heartbeat(["http://slow.example/x"], "n", 1, events.append).finish(Outcome("ok", 0))
    took = time.monotonic() - began
    release.set()
    assert asked.is_set()
    assert took < 1 + SLACK / 2
    assert [e.kind for e in events] == ["heartbeat-lost"]


def test_after_413_it_is_told_without_the_body(finish: Finish, locks: str, monitor: Server) -> None:
    ping = ("--heartbeat", f"{monitor.url}/limit{CHECK}", "--heartbeat-output", "64k")
    assert finish(*ping, "j", "sh", "-c", f"head -c {LIMIT + 1} /dev/zero; exit 2", backend=locks)[0] == 2
    assert [(r.method, len(r.body)) for r in monitor.log] == [("GET", 0), ("POST", LIMIT + 1), ("GET", 0)]
    assert len({r.target for r in monitor.log[1:]}) == 1


def test_a_limit_that_the_monitor_tells_is_kept(finish: Finish, locks: str, monitor: Server) -> None:
    """Healthchecks keeps the head of a body; what matters is the tail."""
    ping = ("--heartbeat", f"{monitor.url}/limited{CHECK}", "--heartbeat-output", "64k")
    script = f"n=0; until [ -e $T/go ] || [ $n = 200 ]; do n=$((n + 1)); sleep .05; done; head -c {2 * LIMIT} /dev/zero; echo end"
    code = None

    def go() -> None:
        nonlocal code
        code = finish(*ping, "j", "sh", "-c", script, backend=locks)[0]

    run = threading.Thread(target=go)
    run.start()
    until(lambda: monitor.log)
    home = locks.removeprefix("flock://").removesuffix("/locks")
    until(lambda: time.time() > monitor.log[0].at + 0.2)  # its answer is read
    Path(home, "go").touch()
    run.join()
    assert code == 0
    assert monitor.log[1].body == bytes(LIMIT - 4) + b"end\n"


# what is imported, and when


def test_without_a_heartbeat_nothing_of_it_is_imported_and_no_thread_started(locks: str) -> None:
    code = (
        "import os, sys; from cronlock import cli;"
        "status = cli.start(sys.argv[1:], {'PATH': '/bin:/usr/bin'});"
        "found = sorted({'cronlock.pings', 'cronlock.tail', 'requests', 'urllib.parse', 'threading'} & sys.modules.keys());"
        "print(status, found, len(os.listdir('/proc/self/task')))"
    )

    def imported(*argv: str) -> str:
        return subprocess.run([sys.executable, "-c", code, "-b", locks, *argv], capture_output=True, text=True, check=True).stdout.strip()

    assert imported("j", "true") == "0 [] 1"
    assert imported("--heartbeat-output", "10k", "j", "true") == "0 [] 1"  # by itself it means nothing: a nested cronlock has it too
    dead = ("--heartbeat", "http://127.0.0.1:1/", "--heartbeat-timeout", "0.5")
    assert imported(*dead, "j", "false").startswith("1 ['cronlock.pings', 'requests', 'threading', 'urllib.parse']")
    subprocess.run([sys.executable, "-m", "cronlock", "-b", locks, "--once-per", "1d", "d", "true"], check=True)
    assert imported(*dead, "--once-per", "1d", "d", "true") == "75 [] 1"
    assert imported(*dead, "--heartbeat-output", "1k", "--once-per", "1d", "d", "true") == "75 ['cronlock.tail'] 1"


def test_requests_comes_after_the_spawn(finish: Finish, locks: str, monitor: Server, tmp_path: Path) -> None:
    """The command looks at its grandparent: nothing of requests is mapped or open yet, or it is by now: never before."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import sys, time\n"
        "class Watch:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == 'requests': open({str(tmp_path / 'imported')!r}, 'w').write(repr(time.time()))\n"
        "sys.meta_path.insert(0, Watch())\n"
    )
    script = "date +%s.%N > $T/began"
    assert finish("--heartbeat", monitor.url + CHECK, "j", "sh", "-c", script, backend=locks, env={"PYTHONPATH": str(site)})[0] == 0
    assert (tmp_path / "imported").exists()
    spawned_before = float((tmp_path / "imported").read_text()) + 0.5  # dash and date need their time, too
    assert float((tmp_path / "began").read_text()) < spawned_before


# --heartbeat-output


@given(st.integers(1, 50), st.lists(st.binary(max_size=120), max_size=20), st.integers(0, 60))
def test_the_ring_holds_the_last_bytes(size: int, chunks: list[bytes], most: int) -> None:
    ring = Ring(size)
    for chunk in chunks:
        ring.add(chunk)
    everything = b"".join(chunks)
    assert b"".join(ring.parts()) == everything[-size:]
    assert len(ring) == min(size, len(everything))
    assert ring.last(most) == (everything[-min(size, most) :] if most else b"")
    ring.close()
    ring.add(b"while it is sent")
    assert b"".join(ring.parts()) == everything[-size:]


def test_the_tail_is_sent_as_it_is_and_the_streams_stay_apart(finish: Finish, locks: str, monitor: Server) -> None:
    ping = ("--heartbeat", monitor.url + CHECK, "--heartbeat-output", "16")
    order = "n=0; until [ -e $T/x ] || [ $n = 40 ]; do n=$((n + 1)); sleep .01; done"  # time enough for one line to arrive before the next
    script = rf"printf 0123456789; {order}; printf '\377\376err\n' >&2; {order}; echo out; exit 9"
    with open("/dev/null") as null:
        code, out, err = finish(*ping, "j", "sh", "-c", script, backend=locks, stdin=null, text=True, errors="surrogateescape")
    assert (code, out, err) == (9, "0123456789out\n", "\udcff\udcfeerr\n")
    assert monitor.log[-1].body == b"456789\xff\xfeerr\nout\n"
    assert monitor.log[-1].headers["content-length"] == "16"


def test_a_reason_follows_the_output(finish: Finish, locks: str, monitor: Server) -> None:
    ping = ("--heartbeat", monitor.url + CHECK, "--heartbeat-output", "1k")
    finish(*ping, "j", "sh", "-c", "printf half; kill -9 $$", backend=locks)
    assert monitor.log[-1].body == b"half\ncronlock: killed by SIGKILL, status 137\n"


def test_output_travels_in_the_query_where_there_is_no_body(finish: Finish, locks: str, monitor: Server) -> None:
    options = ("--heartbeat", "http://cronitor.link/p/K/M", "--heartbeat-output", "1m")
    script = "head -c 5000 /dev/zero | tr '\\0' x; printf '\\377end\\n'; exit 1"
    env = {"http_proxy": monitor.url}
    assert finish(*options, "j", "sh", "-c", script, backend=locks, env=env, errors="replace")[0] == 1
    query = dict(part.split("=", 1) for part in monitor.log[-1].target.partition("?")[2].split("&"))
    assert unquote_to_bytes(query["message"]) == b"failed, status 1\n" + b"x" * 995 + b"\xffend"


def test_two_streams_into_one_place_keep_their_order(start: Start, locks: str, monitor: Server) -> None:
    """As under cron."""
    options = ("--heartbeat", monitor.url + CHECK, "--heartbeat-output", "10k")
    script = "i=0; while [ $i -lt 200 ]; do echo o$i; echo e$i >&2; i=$((i + 1)); done"
    out, err = start(*options, "j", "sh", "-c", script, backend=locks, stderr=subprocess.STDOUT).end()[1:]
    assert out == "".join(f"o{i}\ne{i}\n" for i in range(200))
    assert err is None
    assert monitor.log[-1].body.decode() == out


def test_output_passes_at_once(start: Start, locks: str, monitor: Server, tmp_path: Path) -> None:
    options = ("--heartbeat", monitor.url + CHECK, "--heartbeat-output", "10k")
    script = "echo early; n=0; until [ -e $T/go ] || [ $n = 400 ]; do n=$((n + 1)); sleep .05; done; echo late"
    job = start(*options, "j", "sh", "-c", script, backend=locks)
    assert job.stdout
    assert job.stdout.readline() == "early\n"
    assert job.poll() is None
    (tmp_path / "go").touch()
    assert job.end() == (0, "late\n", "")


def peak(pid: int) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) * 1024 if found else 0


def test_memory_is_bounded_whatever_the_command_prints(start: Start, locks: str, monitor: Server, tmp_path: Path) -> None:
    size = 2 * 1024**2

    def most(amount: int, mark: str) -> int:
        script = f"head -c {amount} /dev/zero; touch $T/{mark}; until [ -e $T/go ]; do sleep .05; done"
        options = ("--heartbeat", monitor.url + CHECK, "--heartbeat-output", str(size))
        with open("/dev/null", "w") as null:
            job = start(*options, "j", "sh", "-c", script, backend=locks, stdout=null)
        until((tmp_path / mark).exists, 60)
        until(lambda: monitor.log)  # requests is loaded
        until(lambda: time.time() > monitor.log[-1].at + 0.3)  # and its answer read
        used = peak(job.pid)
        (tmp_path / "go").touch()
        assert job.end(60)[0] == 0
        (tmp_path / "go").unlink()
        assert len(monitor.log[-1].body) == min(size, amount)
        monitor.log.clear()
        return used

    little, much = most(1, "a"), most(500_000_000, "b")
    assert much - little < size + 1024**2


def test_a_slow_reader_slows_the_command_and_loses_nothing(start: Start, locks: str, monitor: Server, tmp_path: Path) -> None:
    """More than the pipes hold, read only after the command should have ended; and the lease is renewed meanwhile."""
    options = ("-t", "1", "--heartbeat", monitor.url + CHECK, "--heartbeat-output", "1k")
    read, write = os.pipe()
    job = start(*options, "j", "sh", "-c", "head -c 1000000 /dev/zero; echo $? > $T/end; echo last", backend=locks, stdout=write)
    os.close(write)
    until(lambda: monitor.log)
    blocked = time.monotonic() + 2.5  # more than two ttls
    until(lambda: time.monotonic() > blocked)
    assert not (tmp_path / "end").exists()
    assert job.poll() is None
    with open(read, "rb") as stream:
        assert len(stream.read()) == 1_000_005
    assert job.end()[0] == 0
    assert monitor.lines[-1].startswith(f"POST {CHECK} ")


@pytest.mark.parametrize(("blocking", "pipe", "size"), [(True, 65536, 135_000), (False, 65536, 135_000), (True, 1 << 20, 900_000)])
def test_what_a_slow_reader_has_not_read_yet_is_not_lost(
    start: Start, finish: Finish, locks: str, monitor: Server, blocking: bool, pipe: int, size: int
) -> None:
    """The command ends with two pipes full, and the rest in our hand: the lock is free, the ping is out, cronlock waits for the reader."""
    options = ("--heartbeat", monitor.url + CHECK, "--heartbeat-output", "1k")
    script = f"import fcntl, os; fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, {pipe}); os.write(1, bytes({size}))"
    read, write = os.pipe()
    os.set_blocking(write, blocking)
    job = start(*options, "j", sys.executable, "-c", script, backend=locks, stdout=write)
    os.close(write)
    until(lambda: len(monitor.log) == 2)
    assert finish("j", "true", backend=locks)[0] == 0
    patient = time.monotonic() + 1.5
    until(lambda: time.monotonic() > patient)
    assert job.poll() is None
    with open(read, "rb") as stream:
        assert len(stream.read()) == size
    assert job.end()[0] == 0


@pytest.mark.parametrize("command", [("sh", "-c", "head -c 65536 /dev/zero >&2; kill -9 $$"), ("no-such-program",)])
def test_whoever_does_not_read_our_last_words_keeps_no_ping(start: Start, locks: str, monitor: Server, command: tuple[str, ...]) -> None:
    """stderr is full, as under a cron whose mailer hangs; what is said then is said when there is room."""
    read, write = os.pipe()
    if len(command) == 1:
        os.write(write, bytes(65536))
    job = start("--heartbeat", monitor.url + CHECK, "j", *command, backend=locks, stderr=write)
    os.close(write)
    until(lambda: bool(monitor.lines) and monitor.lines[-1].startswith("POST"))
    assert job.poll() is None
    with open(read, "rb") as stream:
        said = stream.read()[65536:]
    assert said.count(b"\n") == 1 and (b"SIGKILL" in said or b"not found" in said)
    assert job.wait() in (137, 127)


def test_a_signal_ends_the_wait_for_a_reader(start: Start, locks: str, monitor: Server) -> None:
    options = ("--heartbeat", monitor.url + CHECK, "--heartbeat-output", "1k")
    read, write = os.pipe()
    job = start(*options, "j", "head", "-c", "130000", "/dev/zero", backend=locks, stdout=write)
    os.close(write)
    until(lambda: len(monitor.log) == 2)

    def ended() -> bool:
        job.send_signal(signal.SIGTERM)
        return job.poll() is not None

    until(ended)
    os.close(read)


def test_a_reader_that_is_gone_ends_the_command_as_ever(start: Start, locks: str, monitor: Server) -> None:
    options = ("--heartbeat", monitor.url + CHECK, "--heartbeat-output", "1k")
    read, write = os.pipe()
    os.close(read)
    job = start(*options, "j", "cat", "/dev/zero", backend=locks, stdout=write)
    os.close(write)
    assert job.end()[0] == 128 + signal.SIGPIPE


def test_a_full_disk_costs_what_it_cannot_take_and_no_more(finish: Finish, locks: str, monitor: Server) -> None:
    options = ("--heartbeat", monitor.url + CHECK, "--heartbeat-output", "1k")
    with open("/dev/full", "w") as full:
        assert finish(*options, "j", "sh", "-c", "echo a; sleep .2; echo b", backend=locks, stdout=full)[::2] == (0, "")
    assert monitor.log[-1].body == b"a\nb\n"


def test_a_daemon_that_keeps_the_pipe_is_not_waited_for(start: Start, finish: Finish, locks: str, monitor: Server, tmp_path: Path) -> None:
    for kind in ("sleep 290", "while echo x; do sleep .01; done"):
        began = time.monotonic()
        script = f"({kind}) & echo $! > $T/daemon; echo done"
        code, out, _ = finish("--heartbeat", monitor.url + CHECK, "--heartbeat-output", "1k", "j", "sh", "-c", script, backend=locks)
        daemon = int((tmp_path / "daemon").read_text())
        try:
            assert (code, out.replace("x\n", "")) == (0, "done\n")
            assert time.monotonic() - began < 2 + SLACK
            assert kind != "sleep 290" or alive(daemon)
        finally:
            for process in [*tree.descendants(daemon), *filter(None, [tree.look(daemon)])]:
                tree.send(process, signal.SIGKILL)


def test_a_closed_stream_stays_closed(start: Start, locks: str, monitor: Server) -> None:
    ping = f"--heartbeat {monitor.url}{CHECK} --heartbeat-output 1k"
    cronlock = Path(sys.executable).with_name("cronlock")
    script = f"exec {cronlock} -b {locks} {ping} j sh -c 'if [ -e /proc/self/fd/1 ]; then exit 1; else exit 7; fi' >&-"
    assert subprocess.run(["sh", "-c", script], check=False).returncode == 7
    assert monitor.lines[-1] == f"GET {CHECK}/7"


def test_without_output_wanted_the_streams_are_the_callers_own(finish: Finish, locks: str, monitor: Server) -> None:
    for size, kind in (("0", "/dev/null"), ("1k", "pipe")):
        options = ("--heartbeat", monitor.url + CHECK, "--heartbeat-output", size)
        with open("/dev/null", "w") as null:
            _, _, err = finish(*options, "j", "sh", "-c", "readlink /proc/self/fd/9 9>&1 >&2", backend=locks, stdout=null)
        assert err.startswith(kind)
