"""Redis: the contract, on both connections, and what only Redis can do wrong."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cronlock import clock, durations, registry
from cronlock import state as states
from cronlock.backends import redis as backend_module
from cronlock.backends import resp
from cronlock.backends.redis import Redis, RedisLease, connect
from cronlock.backends.redis_scripts import CLAIM
from cronlock.backends.redis_url import parse
from cronlock.errors import BackendError, ConfigError, CronlockError, Interrupted, LeaseLost, PermissionDenied, UsageError
from cronlock.model import Busy, Done
from cronlock.protocol import Lease
from cronlock.testing import BackendContract, finished, grant, held, poll, soon
from fixtures_redis import Proxy, RedisServer, free_port
from pages import ROOT

O45 = ("-@all", "+set", "+get", "+del", "+pexpire", "+eval", "+evalsha", "+ping")
BARE = ("-@all", "+set", "+get", "+del", "+pexpire", "+ping")
SPECIAL = "p:a/s#s?w@o%r&d=+ \"'\\[]ü€"


class TestContract(BackendContract):
    @pytest.fixture
    def url(self, redis_url: str) -> str:
        return redis_url

    @pytest.fixture
    def dead_url(self) -> str:
        return f"redis://127.0.0.1:{free_port()}"


class TestContractThroughRedisPy(TestContract):
    """The same by redis-py's connection, as for TLS; the workers too, which a monkeypatch would not reach."""

    increments = 20

    @pytest.fixture
    def url(self, redis_tls: tuple[RedisServer, int, str]) -> str:
        _, port, ca = redis_tls
        return f"rediss://127.0.0.1:{port}/?prefix=t{uuid.uuid4().hex[:8]}:&ssl_ca_certs={ca}"

    @pytest.fixture
    def dead_url(self) -> str:
        return f"rediss://127.0.0.1:{free_port()}"


@pytest.fixture(scope="module")
def scriptless(start_redis: Callable[..., RedisServer]) -> RedisServer:
    return start_redis("--rename-command", "EVAL", "", "--rename-command", "EVALSHA", "")


class TestContractWithoutScripts(TestContract):
    """A server that has no EVAL, but WATCH and lists: every rule in Python."""

    increments = 20

    @pytest.fixture
    def url(self, scriptless: RedisServer) -> str:
        return scriptless.url(prefix=f"t{uuid.uuid4().hex[:8]}:")


@pytest.fixture
def name() -> str:
    return f"job-{uuid.uuid4().hex[:10]}"


@pytest.fixture(params=[False, True], ids=["wire", "redis-py"])
def opened(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Redis]]:
    """Opens a URL, once by our own connection, once by redis-py's."""
    made: list[Redis] = []

    def another(url: str) -> Redis:
        made.append(connect(url, driver=request.param))
        return made[-1]

    yield another
    for backend in made:
        backend.close()


def lines(server: RedisServer) -> int:
    return sum(int(entry[1]) for entry in server.cli("ACL", "LOG"))


@pytest.fixture
def user(redis_server: RedisServer) -> Iterator[Callable[..., tuple[str, str]]]:
    """user(rules…) -> URL and prefix; an ACL user that may see no key but its own prefix's."""
    names: list[str] = []

    def make(*rules: str) -> tuple[str, str]:
        who = f"u{uuid.uuid4().hex[:8]}"
        names.append(who)
        redis_server.cli("ACL", "SETUSER", who, "on", ">pw", f"~{who}:*", *rules)
        redis_server.cli("ACL", "LOG", "RESET")
        return redis_server.url(who, "pw", prefix=f"{who}:"), f"{who}:"

    yield make
    for who in names:
        redis_server.cli("ACL", "DELUSER", who)


def lock_of(url: str, name: str) -> str:
    return parse(url).prefix + name


# --- who may do what


def test_the_smallest_user_with_scripts_leaves_no_line_in_the_acl_log(
    opened: Callable[[str], Redis], user: Callable[..., tuple[str, str]], redis_server: RedisServer, name: str
) -> None:
    url, prefix = user(*O45)
    one, two = opened(url), opened(url)
    lease = held(one, name, label="1h/a", min_hold=0.05)
    answer = two.try_acquire(grant(name), soon())
    assert isinstance(answer, Busy) and answer.run and answer.run.token == lease.run.token and answer.ttl_left is None
    two.wait(name, clock.now() + 0.3)
    lease.renew(soon())
    lease.release(finished(lease), soon())
    poll(lambda: isinstance(two.try_acquire(grant(name, label="1h/a"), soon()), Done))
    redis_server.cli("DEL", prefix + name)
    lease = held(two, name)
    redis_server.cli("DEL", prefix + name)
    with pytest.raises(LeaseLost):
        lease.renew(soon())
    lease.regain(soon())
    lease.release(finished(lease), soon())
    two.abandon(grant(name), soon())
    assert lines(redis_server) == 0
    assert redis_server.cli("KEYS", prefix + "*") == [f"{prefix}{name}\x1fstate"]


def test_whoever_has_the_lock_now_is_named_without_the_token(opened: Callable[[str], Redis], redis_url: str, name: str) -> None:
    one, two = opened(redis_url), opened(redis_url)
    lease = held(one, name)
    key = lock_of(redis_url, name)
    two._server.plain([("DEL", key)], soon())
    other = held(two, name)
    with pytest.raises(LeaseLost, match=f"now holds another value .of pid {other.run.pid} on {other.run.host}.$"):
        lease.renew(soon())
    two._server.plain([("PERSIST", key)], soon())
    with pytest.raises(ConfigError, match=f"has no expiry .of pid {other.run.pid} on"):
        one.try_acquire(grant(name), soon())


def test_the_users_of_the_docs(opened: Callable[[str], Redis], user: Callable[..., tuple[str, str]], name: str) -> None:
    """One for jobs, and with a few rights more one for operators."""
    page = (ROOT / "docs/backends.md").read_text()
    jobs = [word for word in page.partition("ACL SETUSER cron ")[2].splitlines()[0].split() if word.startswith("+")]
    more = page.partition("an operator's user, who has\n`")[2].partition("`")[0].split()
    (job, _), (operator, _) = user("-@all", "allchannels", *jobs), user("-@all", "allchannels", *jobs, *more)
    theirs = opened(job)
    lease = held(theirs, name)
    with pytest.raises(PermissionDenied, match=re.escape(" ".join(more))):
        theirs.seize(name, finished(lease, "lost"), finished(lease, "released"), soon())
    ours = opened(operator)
    lease = held(ours, name)
    ours.seize(name, finished(lease, "lost"), grant(name).run.but(outcome="released"), soon())
    with pytest.raises(LeaseLost, match="cronlockctl release"):
        lease.renew(soon())


def test_a_user_without_scripts(
    opened: Callable[[str], Redis], user: Callable[..., tuple[str, str]], redis_server: RedisServer, name: str
) -> None:
    url, prefix = user(*BARE)
    one, two = opened(url), opened(url)
    lease = held(one, name, label="1h/a")
    answer = two.try_acquire(grant(name), soon())
    assert isinstance(answer, Busy) and answer.run and answer.run.token == lease.run.token
    redis_server.cli("PEXPIRE", prefix + name, 500)
    lease.renew(soon())
    assert redis_server.cli("PTTL", prefix + name) > 2000
    redis_server.cli("DEL", prefix + name)
    with pytest.raises(LeaseLost):
        lease.renew(soon())
    lease.regain(soon())
    lease.release(finished(lease), soon())
    with pytest.raises(LeaseLost):
        lease.renew(soon())
    assert isinstance(two.try_acquire(grant(name, label="1h/a"), soon()), Done)
    second = held(two, name, label="1h/b")
    assert second.run.fence > lease.run.fence
    with pytest.raises(LeaseLost):
        lease.regain(soon())
    second.release(finished(second), soon())
    asked = grant(name)
    assert not isinstance(one.try_acquire(asked, soon()), (Busy, Done))
    one.abandon(asked, soon())
    last = held(two, name, min_hold=0.4)
    last.release(finished(last), soon())
    answer = one.try_acquire(grant(name), soon())
    assert isinstance(answer, Busy) and answer.held
    poll(lambda: not isinstance(one.try_acquire(grant(name), soon()), Busy))
    assert {entry[7] for entry in redis_server.cli("ACL", "LOG")} == {"eval"}
    assert lines(redis_server) == 2  # once a client: a run is one client


def test_the_smallest_user_where_nobody_has_scripts(opened: Callable[[str], Redis], scriptless: RedisServer, name: str) -> None:
    scriptless.cli("ACL", "SETUSER", "least", "on", ">pw", "~cl:*", *BARE)
    url = scriptless.url("least", "pw", prefix="cl:")
    for renewals in (0, 1):
        lease = held(opened(url), name)
        for _ in range(renewals):
            lease.renew(soon())
        assert isinstance(opened(url).try_acquire(grant(name), soon()), Busy)
        lease.release(finished(lease), soon())
    assert scriptless.cli("EXISTS", f"cl:{name}") == 0


@pytest.mark.parametrize("gone", [("TIME", "PTTL", "PUBLISH", "SUBSCRIBE", "RPUSH", "LTRIM"), ("EVAL", "WATCH")])
def test_a_server_that_renamed_commands_away(
    opened: Callable[[str], Redis], start_redis: Callable[..., RedisServer], name: str, gone: tuple[str, ...]
) -> None:
    server = start_redis(*(word for command in gone for word in ("--rename-command", command, "")))
    one, two = opened(server.url()), opened(server.url())
    lease, asked = held(one, name), grant(name)
    assert isinstance(two.try_acquire(grant(name), soon()), Busy)
    two.wait(name, soon(0.1))
    lease.renew(soon())
    lease.release(finished(lease), soon())
    assert isinstance(two.try_acquire(asked, soon()), RedisLease)
    two.abandon(asked, soon())
    assert server.cli("KEYS", "*") == [f"cronlock:{name}\x1fstate"]
    server.stop()


def test_a_user_without_keys_is_denied_not_busy(opened: Callable[[str], Redis], user: Callable[..., tuple[str, str]], name: str) -> None:
    url, prefix = user(*O45)
    backend = opened(url.replace(f"prefix={prefix[:-1]}", "prefix=other"))
    with pytest.raises(PermissionDenied, match="ACL SETUSER"):
        backend.try_acquire(grant(name), soon())


@pytest.mark.parametrize("missing", ["user", "password"])
def test_a_refused_login_is_denied_and_locks_nothing(
    opened: Callable[[str], Redis], redis_server: RedisServer, name: str, missing: str
) -> None:
    who = f"u{uuid.uuid4().hex[:8]}"
    if missing == "password":
        redis_server.cli("ACL", "SETUSER", who, "on", ">right", "~*", "+@all")
    with pytest.raises(PermissionDenied) as caught:  # though the default user of the same connection could
        opened(redis_server.url(who, "S3cr3tXY", prefix=f"{name}:")).try_acquire(grant(name), soon())
    assert "S3cr3tXY" not in str(caught.value) and "\n" not in str(caught.value)
    redis_server.cli("ACL", "DELUSER", who)
    assert redis_server.cli("KEYS", f"{name}:*") == []


def test_passwords_with_every_special_character(
    opened: Callable[[str], Redis], redis_server: RedisServer, name: str, tmp_path: Path
) -> None:
    redis_server.cli("ACL", "SETUSER", "odd:us/er", "on", ">" + SPECIAL, "~*", "&*", "+@all")
    try:
        held(opened(redis_server.url("odd:us/er", SPECIAL, 2, prefix=name)), "a")
        file = tmp_path / "pw"
        file.write_text(SPECIAL + "\nsecond line\n")
        file.chmod(0o600)
        held(opened(redis_server.url(prefix=name, username="odd:us/er", password_file=str(file))), "b")
        file.chmod(0o644)
        with pytest.raises(PermissionDenied, match="chmod"):
            opened(redis_server.url(prefix=name, username="odd:us/er", password_file=str(file))).try_acquire(grant("c"), soon())
    finally:
        redis_server.cli("ACL", "DELUSER", "odd:us/er")


# --- replies that are no grant (O42)

SECRET = ["-ERR unknown command 'AUTH', with args beginning with: 'S3cr3tXY'", "-ERR S3cr3tXY is wrong", "$-1"]
REPLIES = {
    "-READONLY You can't write": (BackendError, "replica"),
    "-NOAUTH Authentication required.": (PermissionDenied, "password"),
    "-WRONGPASS invalid username-password pair": (PermissionDenied, "wrong"),
    "-NOPERM No permissions": (PermissionDenied, "ACL"),
    "-DENIED protected mode": (PermissionDenied, "protected"),
    "-LOADING dataset": (BackendError, "reading"),
    "-MISCONF Errors": (BackendError, "disk"),
    "-OOM command not allowed": (BackendError, "memory"),
    "-MOVED 1234 127.0.0.1:7000": (BackendError, "Cluster"),
    "-ASK 1234 127.0.0.1:7000": (BackendError, "Cluster"),
    "-CLUSTERDOWN Hash slot not served": (BackendError, "Cluster"),
    "-CROSSSLOT Keys": (BackendError, "Cluster"),
    "-BUSY running a script": (BackendError, "SCRIPT KILL"),
    "-ERR unknown command 'x'": (BackendError, "unknown command"),
    "-ERR unknown command 'SET', with args beginning with: 'cronlock:j'": (BackendError, "a Sentinel seems to answer here"),
    "-ERR max number of clients reached": (BackendError, "max number"),
    "-": (BackendError, ""),
    ":1": (BackendError, ""),
    "+QUEUED": (BackendError, ""),
    "+OK": (BackendError, ""),
    "*0": (BackendError, ""),
    "garbage": (BackendError, ""),
    "%1\r\n*0\r\n:1": (BackendError, ""),  # a map whose key is a list, which the parser can't make a dict of
    "": (BackendError, ""),
    "HTTP/1.1 400 Bad Request": (BackendError, ""),
}


@pytest.mark.parametrize("each", [True, False], ids=["each", "once"])
@pytest.mark.parametrize("line", REPLIES)
def test_only_ok_is_a_grant(opened: Callable[[str], Redis], fixed_reply_server: Callable[..., int], line: str, each: bool) -> None:
    kind, word = REPLIES[line]
    started = clock.now()
    with pytest.raises(CronlockError) as caught:
        opened(f"redis://127.0.0.1:{fixed_reply_server(line, each)}").try_acquire(grant("x"), soon(3))
    assert type(caught.value) is kind and word in str(caught.value) and "\n" not in str(caught.value), str(caught.value)
    assert clock.now() - started < 4


@pytest.mark.parametrize("each", [True, False], ids=["each", "once"])
def test_nil_is_busy(opened: Callable[[str], Redis], fixed_reply_server: Callable[..., int], each: bool) -> None:
    assert opened(f"redis://127.0.0.1:{fixed_reply_server('$-1', each)}").try_acquire(grant("x"), soon(6)) == Busy()


@pytest.mark.parametrize("line", [*REPLIES, *SECRET])
def test_no_reply_brings_the_password_out(opened: Callable[[str], Redis], fixed_reply_server: Callable[..., int], line: str) -> None:
    backend = opened(f"redis://u:S3cr3tXY@127.0.0.1:{fixed_reply_server(line)}/3")
    with pytest.raises(CronlockError) as caught:
        backend.try_acquire(grant("x"), soon(3))
    assert isinstance(caught.value, (BackendError, PermissionDenied))
    assert "S3cr3tXY" not in str(caught.value) + backend.where + repr(backend._target)


def test_a_database_that_is_not_there_locks_nothing(opened: Callable[[str], Redis], redis_server: RedisServer, name: str) -> None:
    with pytest.raises(BackendError, match="range"):
        opened(redis_server.url(db=999, prefix=name)).try_acquire(grant("x"), soon())
    assert redis_server.cli("KEYS", name + "*") == []


# --- the lock's key


def test_the_key_is_prefix_and_name_and_shared_with_scripts(
    opened: Callable[[str], Redis], redis_server: RedisServer, redis_url: str, name: str
) -> None:
    key, backend = lock_of(redis_url, name), opened(redis_url)
    lease = held(backend, name)
    assert redis_server.cli("GET", key).startswith(lease.run.token) and os.uname().nodename in redis_server.cli("GET", key)
    assert redis_server.cli("SET", key, "script", "NX", "EX", 60) is None
    lease.release(finished(lease), soon())
    assert redis_server.cli("SET", key, "script", "NX", "PX", 60000)
    answer = backend.try_acquire(grant(name), soon())
    assert isinstance(answer, Busy) and answer.run is None and answer.ttl_left and 50 < answer.ttl_left <= 60
    assert "another program" in backend.status(name, soon()).detail


def test_a_foreign_value_is_not_deleted(opened: Callable[[str], Redis], redis_server: RedisServer, redis_url: str, name: str) -> None:
    key, backend = lock_of(redis_url, name), opened(redis_url)
    asked = grant(name)
    lease = backend.try_acquire(asked, soon())
    assert not isinstance(lease, (Busy, Done))
    for value in ("other", asked.run.token[:-1] + "x {}", asked.run.token):
        redis_server.cli("SET", key, value, "EX", 60)
        for act in (lambda: lease.release(finished(lease), soon()), lambda: lease.renew(soon()), lambda: lease.regain(soon())):
            with pytest.raises(LeaseLost):
                act()
        backend.abandon(asked, soon())
        assert redis_server.cli("GET", key) == value and 50 < redis_server.cli("TTL", key) <= 60


def test_a_key_without_expiry_is_a_fault_and_ours_gets_one(
    opened: Callable[[str], Redis], redis_server: RedisServer, redis_url: str, name: str
) -> None:
    key, backend = lock_of(redis_url, name), opened(redis_url)
    lease = held(backend, name)
    redis_server.cli("PERSIST", key)
    lease.renew(soon())
    assert 0 < redis_server.cli("PTTL", key) <= 5000
    redis_server.cli("SET", key, "forever")
    with pytest.raises(ConfigError, match="no expiry"):
        backend.try_acquire(grant(name), soon())
    status = backend.status(name, soon())
    assert status.held and "no expiry" in status.detail


def test_a_key_of_another_kind(opened: Callable[[str], Redis], redis_server: RedisServer, redis_url: str, name: str) -> None:
    redis_server.cli("RPUSH", lock_of(redis_url, name), "x")
    redis_server.cli("RPUSH", lock_of(redis_url, name + "2") + "\x1fstate", "x")
    for which in (name, name + "2"):
        with pytest.raises(BackendError, match="prefix"):
            opened(redis_url).try_acquire(grant(which), soon())
    assert redis_server.cli("EXISTS", lock_of(redis_url, name + "2")) == 0  # an attempt that ended in an error left nothing


def test_a_history_of_another_kind_is_said(opened: Callable[[str], Redis], redis_server: RedisServer, redis_url: str, name: str) -> None:
    redis_server.cli("SET", lock_of(redis_url, name) + "\x1fruns", "x")
    backend = opened(redis_url)
    lease = held(backend, name)
    lease.release(finished(lease), soon())
    assert ["WRONGTYPE" in text for text in backend.warnings] == [True]
    assert held(backend, name).previous is None


def test_names_share_no_key(opened: Callable[[str], Redis], redis_server: RedisServer, redis_url: str) -> None:
    names = ["a", "a:state", "a state", "state:a", "a.runs", "runs", "a\\x1fstate", "ü", "a*", "a?", "[a]", "\udcff", "x" * 200]
    backend = opened(redis_url)
    leases = {each: held(backend, each, label="1h/a") for each in names}
    assert len({lease.run.token for lease in leases.values()}) == len(names)
    for each, lease in leases.items():
        assert backend.status(each, soon()).run.token == lease.run.token  # type: ignore[union-attr]
        lease.release(finished(lease), soon())
        assert len(backend.history(each, soon())) == 1
    assert list(backend.names(soon())) == sorted(names)
    keys = redis_server.cli("KEYS", parse(redis_url).prefix + "*")
    assert len(keys) == 2 * len(names)


def test_prefixes_are_apart_and_globs_are_not_globs(opened: Callable[[str], Redis], redis_server: RedisServer) -> None:
    base = uuid.uuid4().hex[:6]
    for prefix in (f"{base}*:", f"{base}x:", f"{base}[a-z]:", f"{base}\\:", f"{base}?:"):
        backend = opened(redis_server.url(prefix=prefix))
        held(backend, "backup")
        held(backend, prefix)
        assert set(backend.names(soon())) == {"backup", prefix}


def test_undecodable_argv_is_no_broken_state(opened: Callable[[str], Redis], redis_url: str, name: str) -> None:
    backend = opened(redis_url)
    for _ in range(3):
        asked = grant(name, label="")
        lease = backend.try_acquire(asked.but(run=asked.run.but(command="echo \udcff \u0000 € 'x'\\", user="\udcfe", label="")), soon())
        assert not isinstance(lease, (Busy, Done))
        lease.release(finished(lease), soon())
    assert backend.warnings == [] and len(backend.history(name, soon())) == 3


# --- the state

WRONG = [  # a run, as the last one and among the claims, with a field that state.py does not take
    '{"v":1,"fence":"1","held":0,"run":RUN,"claims":CLAIMS}'.replace(place, f'{before}{{"token":"a","host":"h",{field}}}{behind}')
    for place, before, behind in (("RUN", "", ""), ("CLAIMS", "[", "]"))
    for field in ('"pid":1.5,"start":1', '"pid":1,"start":1e12', '"pid":1,"start":1,"end":1e12', '"pid":1,"start":1,"end":"1"')
]
WRONG = [text.replace("RUN", "null").replace("CLAIMS", "[]") for text in WRONG]


@pytest.mark.parametrize("text", ["{", "5", "[]", '"x"', '{"v":1}', '{"v":"1"}', '{"v":1,"fence":"x","held":0,"run":null,"claims":[]}',
                                  '{"v":1,"fence":"1","held":0,"run":{"token":"a"},"claims":[]}', "\udcff\udcfe",
                                  '{"v":1,"fence":"1","held":1e300,"run":null,"claims":[]}',
                                  '{"v":1,"fence":"1","held":Infinity,"run":null,"claims":[]}',
                                  *WRONG])  # fmt: skip
def test_a_broken_state_is_set_aside_and_said(
    opened: Callable[[str], Redis], redis_server: RedisServer, redis_url: str, name: str, text: str
) -> None:
    backend, key = opened(redis_url), lock_of(redis_url, name)
    raw = text.encode("utf-8", "surrogateescape")
    redis_server.cli("SET", f"{key}\x1fstate", raw)
    lease = held(backend, name, label="1h/a")
    assert len(backend.warnings) == 1 and "broken" in backend.warnings[0]
    assert redis_server.cli("STRLEN", f"{key}\x1fbroken") == len(raw)
    assert 0 < redis_server.cli("TTL", f"{key}\x1fbroken") <= backend_module.KEEP_MS / 1000
    lease.release(finished(lease), soon())
    assert isinstance(backend.try_acquire(grant(name, label="1h/a"), soon()), Done)
    assert len(backend.warnings) == 1


def test_a_lock_that_goes_between_the_refusal_and_the_script_uses_no_label_up(redis_server: RedisServer, redis_url: str, name: str) -> None:
    """Another's, which refused ours: it was released before the script had its turn, and nothing will run for the label."""
    key, run = lock_of(redis_url, name), grant(name, label="1h/a").run
    keys = (key, f"{key}\x1fstate", f"{key}\x1fbroken")
    asked = (run.token, states.encode_run(run), run.label, 0, "0.0", 60_000, 60_000, "1700000000.0", f"{key}\x1ffree")
    assert redis_server.cli("EVAL", CLAIM, len(keys), *keys, *asked)[0] == "busy"
    assert redis_server.cli("EXISTS", *keys) == 0


def test_a_newer_state_is_refused_in_words(opened: Callable[[str], Redis], redis_server: RedisServer, redis_url: str, name: str) -> None:
    key = lock_of(redis_url, name)
    redis_server.cli("SET", f"{key}\x1fstate", '{"v": 2}')
    with pytest.raises(ConfigError, match="update"):
        opened(redis_url).try_acquire(grant(name), soon())
    assert redis_server.cli("EXISTS", key) == 0 and redis_server.cli("GET", f"{key}\x1fstate") == '{"v": 2}'


def test_a_newer_state_outlives_an_older_program(
    opened: Callable[[str], Redis], user: Callable[..., tuple[str, str]], redis_server: RedisServer, redis_url: str, name: str
) -> None:
    """Where there are no scripts, and where an operator takes the lock away: the refusal wiped it, and the next start ran."""
    url, prefix = user(*BARE)
    redis_server.cli("SET", f"{prefix}{name}\x1fstate", '{"v": 2}')
    for _ in range(2):
        with pytest.raises(ConfigError, match="update cronlock"):
            opened(url).try_acquire(grant(name), soon())
    assert redis_server.cli("GET", f"{prefix}{name}\x1fstate") == '{"v": 2}'
    assert redis_server.cli("EXISTS", prefix + name) == 0
    key, lease = lock_of(redis_url, name), held(opened(redis_url), name)
    redis_server.cli("SET", f"{key}\x1fstate", '{"v": 2}')
    with pytest.raises(ConfigError, match="update cronlock"):
        opened(redis_url).seize(name, finished(lease, "lost"), grant(name).run.but(outcome="released"), soon())
    assert redis_server.cli("GET", f"{key}\x1fstate") == '{"v": 2}'


def test_the_fence_keeps_its_digits_and_grows_past_a_clock_set_back(
    opened: Callable[[str], Redis], redis_server: RedisServer, redis_url: str, name: str
) -> None:
    key, backend = lock_of(redis_url, name), opened(redis_url)
    ahead = 4000000000123457
    redis_server.cli("SET", f"{key}\x1fstate", states.encode(states.State(fence=ahead)))
    lease = held(backend, name)
    assert lease.run.fence == ahead + 1
    assert states.decode(redis_server.cli("GET", f"{key}\x1fstate")).fence == ahead + 1
    lease.release(finished(lease), soon())
    assert held(backend, name).run.fence == ahead + 2


def test_the_clock_is_the_stores(opened: Callable[[str], Redis], redis_url: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "wall", lambda: time.time() + 86400)
    assert held(opened(redis_url), name).run.fence / 1e6 < time.time() + 3600


def test_a_min_hold_by_a_clock_set_back_keeps_nobody_out(
    opened: Callable[[str], Redis], redis_server: RedisServer, redis_url: str, name: str
) -> None:
    """As if it had been granted tomorrow: it is not over for a day, which nobody ever meant."""
    key, backend = lock_of(redis_url, name), opened(redis_url)
    lease = held(backend, name, min_hold=60)
    lease.release(finished(lease), soon())
    assert 50_000 < redis_server.cli("PTTL", key) <= 60_000  # for scripts too that share the key
    redis_server.cli("DEL", key)  # its expiry keeps the hold by itself, by a clock that is never set back
    answer = backend.try_acquire(grant(name), soon())
    assert isinstance(answer, Busy) and answer.held and redis_server.cli("EXISTS", key) == 0
    state = states.decode(redis_server.cli("GET", f"{key}\x1fstate"))
    redis_server.cli("SET", f"{key}\x1fstate", states.encode(state.but(held=state.held + 0.9)))  # as good as none
    assert isinstance(backend.try_acquire(grant(name), soon()), Busy)
    redis_server.cli("SET", f"{key}\x1fstate", states.encode(state.but(held=state.held + 86400, fence=state.fence + 86400 * 10**6)))
    lease = held(backend, name, min_hold=60)  # its fence is a day ahead, and its hold lasts as long as any
    lease.release(finished(lease), soon())
    redis_server.cli("DEL", key)
    answer = backend.try_acquire(grant(name), soon())
    assert isinstance(answer, Busy) and answer.held


def test_the_script_writes_what_the_rule_says(opened: Callable[[str], Redis], redis_server: RedisServer, redis_url: str, name: str) -> None:
    """Where the holder dies, the script's words are what the next one reads."""
    key, backend = lock_of(redis_url, name), opened(redis_url)
    known = tuple(finished(lease) for lease in [held(backend, f"{name}{i}", label=f"1m/{i}") for i in range(100)])
    redis_server.cli("SET", f"{key}\x1fstate", states.encode(states.State(claims=known)))
    for label, min_hold in (("1h/a", 0.0), ("", 0.0), ("1h/a", 60.0), ("1h/b", 0.0)):
        lease = held(backend, name, label=label, min_hold=min_hold, retry_failed=True)
        written = states.decode(redis_server.cli("GET", f"{key}\x1fstate"))
        assert isinstance(lease, RedisLease) and written.run
        for one, other in zip((written.run, *written.claims), (lease.run, *lease._state.claims), strict=True):
            assert one.but(start=0.0, end=None) == other.but(start=0.0, end=None)
        assert (written.fence, written.hold) == (lease._state.fence, lease._state.hold)
        assert written.held == pytest.approx(lease._state.held, abs=0.01)
        assert len(written.claims) == 100
        redis_server.cli("DEL", key)  # it dies
        if min_hold:
            redis_server.cli("SET", f"{key}\x1fstate", states.encode(written.but(held=0.0)))


@pytest.mark.parametrize("scripts", [True, False])
def test_state_and_history_expire_long_after_any_period(
    opened: Callable[[str], Redis], user: Callable[..., tuple[str, str]], redis_server: RedisServer, name: str, scripts: bool
) -> None:
    """--once-per takes whole days, up to ten years of them, and a run without it must not cut their memory short."""
    url, prefix = user(*(O45 if scripts else BARE), "+rpush", "+ltrim")
    backend, state = opened(url), f"{prefix}{name}\x1fstate"
    lease = held(backend, name)
    for act in (lease.renew, lambda until: lease.release(finished(lease), until)):
        act(soon())
        assert 60 * 86400 < redis_server.cli("TTL", state) <= backend_module.KEEP_MS / 1000
    for label in ("3650d/2026-11-29", ""):
        lease = held(backend, name, label=label)
        assert redis_server.cli("TTL", state) > durations.LONGEST
        lease.release(finished(lease), soon())
        assert redis_server.cli("TTL", state) > durations.LONGEST
    asked = grant(name)
    backend.try_acquire(asked, soon())
    backend.abandon(asked, soon())
    assert redis_server.cli("TTL", state) > durations.LONGEST
    assert not scripts or redis_server.cli("TTL", f"{prefix}{name}\x1fruns") > 60 * 86400


def test_deleted_by_hand_between_runs_costs_nothing(
    opened: Callable[[str], Redis], redis_server: RedisServer, redis_url: str, name: str
) -> None:
    backend = opened(redis_url)
    first = held(backend, name)
    first.release(finished(first), soon())
    redis_server.cli("DEL", *redis_server.cli("KEYS", lock_of(redis_url, name) + "*"))
    second = held(backend, name)
    assert second.run.fence > first.run.fence


# --- lost and regained


def test_an_evicted_key_is_noticed_and_regained(
    opened: Callable[[str], Redis], redis_server: RedisServer, redis_url: str, name: str
) -> None:
    backend, other = opened(redis_url), opened(redis_url)
    lease = held(backend, name)
    redis_server.cli("DEL", lock_of(redis_url, name))
    with pytest.raises(LeaseLost, match="gone"):
        lease.renew(soon())
    lease.regain(soon())
    assert 0 < redis_server.cli("PTTL", lock_of(redis_url, name)) <= 5000  # not for ever
    lease.renew(soon())
    assert isinstance(other.try_acquire(grant(name), soon()), Busy)
    lease.release(finished(lease), soon())


def test_never_regained_from_somebody_else(opened: Callable[[str], Redis], redis_server: RedisServer, redis_url: str, name: str) -> None:
    mine = held(opened(redis_url), name)
    redis_server.cli("DEL", lock_of(redis_url, name))
    theirs = held(opened(redis_url), name)
    with pytest.raises(LeaseLost, match=f"now holds another value \\(of pid {os.getpid()} on ") as caught:
        mine.regain(soon())
    assert theirs.run.token not in str(caught.value)  # whoever has it has the lock
    theirs.release(finished(theirs), soon())
    with pytest.raises(LeaseLost):
        mine.regain(soon())
    assert redis_server.cli("EXISTS", lock_of(redis_url, name)) == 0


def test_a_grant_lost_by_a_lagging_replica_is_regained(
    opened: Callable[[str], Redis], redis_server: RedisServer, redis_url: str, name: str
) -> None:
    backend, key = opened(redis_url), lock_of(redis_url, name)
    first = held(backend, name)
    first.release(finished(first), soon())
    before = redis_server.cli("GET", f"{key}\x1fstate")
    second = held(backend, name)
    redis_server.cli("DEL", key)
    redis_server.cli("SET", f"{key}\x1fstate", before)  # what the promoted replica knows
    second.regain(soon())
    assert states.decode(redis_server.cli("GET", f"{key}\x1fstate")).fence == second.run.fence
    # the same number from another hand is not the same grant
    redis_server.cli("DEL", key)
    redis_server.cli("SET", f"{key}\x1fstate", before.replace(first.run.token, uuid.uuid4().hex))
    with pytest.raises(LeaseLost):
        second.regain(soon())


def test_an_emptied_restart_is_noticed_at_once_and_never_regained(
    opened: Callable[[str], Redis], own_redis: RedisServer, name: str
) -> None:
    lease = held(opened(own_redis.url()), name)
    assert lease.watch_fd is not None and not resp.ready(lease.watch_fd, 0)
    own_redis.restart(empty=True)
    assert resp.ready(lease.watch_fd, soon())
    with pytest.raises(LeaseLost):
        lease.renew(soon())
    with pytest.raises(LeaseLost):
        lease.regain(soon())
    assert own_redis.cli("DBSIZE") == 0


def test_a_restart_with_data_is_survived(opened: Callable[[str], Redis], own_redis: RedisServer, name: str) -> None:
    lease = held(opened(own_redis.url()), name, ttl=30)
    own_redis.restart(empty=False)
    lease.renew(soon())
    own_redis.cli("DEL", "cronlock:" + name)
    own_redis.restart(empty=False)
    with pytest.raises(LeaseLost):
        lease.renew(soon())
    lease.regain(soon())
    lease.release(finished(lease), soon())


@pytest.mark.parametrize("scripts", [True, False])
def test_a_grant_whose_answer_was_lost_is_known_again(
    opened: Callable[[str], Redis], own_redis: RedisServer, redis_proxy: Callable[[int], Proxy], name: str, scripts: bool
) -> None:
    proxy = redis_proxy(own_redis.port)
    backend = opened(own_redis.url(port=proxy.port))
    backend._scripts, asked = scripts, grant(name, label="1h/a")
    proxy.swallow = True
    lease = backend.try_acquire(asked, soon())
    assert not isinstance(lease, (Busy, Done)) and not proxy.swallow
    again = backend.try_acquire(asked, soon())  # and if the caller asks again
    assert not isinstance(again, (Busy, Done)) and again.run.fence == lease.run.fence
    if scripts:
        proxy.swallow = True
        lease.release(finished(lease), soon())
        assert not proxy.swallow and len(backend.history(name, soon())) == 1
        assert isinstance(backend.try_acquire(asked.but(run=grant(name, label="1h/a").run), soon()), Done)


# --- servers in trouble


def test_a_replica_is_an_error_and_its_promotion_is_found(opened: Callable[[str], Redis], own_redis: RedisServer, name: str) -> None:
    backend = opened(own_redis.url())
    own_redis.cli("REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(BackendError, match="replica"):
        backend.try_acquire(grant(name), soon())
    own_redis.cli("REPLICAOF", "NO", "ONE")
    lease = held(backend, name)
    own_redis.cli("REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(BackendError, match="replica"):  # also while it is held: never busy
        opened(own_redis.url()).try_acquire(grant(name), soon())
    with pytest.raises(BackendError, match="replica"):
        lease.renew(soon())
    own_redis.cli("REPLICAOF", "NO", "ONE")
    lease.renew(soon())


def test_a_name_that_follows_the_primary_is_followed(own_redis: RedisServer, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As managed services do: the old primary goes on as a replica, with its connections open, and the name leads elsewhere."""
    import _socket
    import socket

    real, leads = _socket.getaddrinfo, ["127.0.0.1"]

    def look_up(host: Any, *args: Any) -> Any:
        if host != b"primary.test":
            return real(host, *args)
        if args[4] & _socket.AI_NUMERICHOST or not leads:
            raise _socket.gaierror(-2, "Name or service not known")
        return real(leads[0], *args)

    monkeypatch.setattr("cronlock.backends.dial._socket.getaddrinfo", look_up)
    backend = connect(f"redis://primary.test:{own_redis.port}")
    lease = held(backend, name)
    own_redis.cli("REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(BackendError, match="replica"):
        lease.renew(soon())
    leads[0] = "::1"
    own_redis.cli("REPLICAOF", "NO", "ONE")
    lease.renew(soon())
    assert lease.watch_fd is not None
    with socket.socket(fileno=os.dup(lease.watch_fd)) as link:
        assert link.getpeername()[0] == "::1"
    leads.clear()
    own_redis.cli("CLIENT", "KILL", "TYPE", "normal")
    lease.renew(soon())  # nor does it matter that the name server is away
    backend.close()


def test_out_of_memory_is_an_error_and_release_still_works(opened: Callable[[str], Redis], own_redis: RedisServer, name: str) -> None:
    backend = opened(own_redis.url())
    lease = held(backend, name)
    own_redis.cli("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(BackendError, match="memory"):
        opened(own_redis.url()).try_acquire(grant(name + "2"), soon())
    lease.renew(soon())
    lease.release(finished(lease), soon())
    own_redis.cli("CONFIG", "SET", "maxmemory", "0")
    held(backend, name)


def test_a_frozen_server_is_unknown_in_time(opened: Callable[[str], Redis], own_redis: RedisServer, name: str) -> None:
    backend = opened(own_redis.url())
    lease = held(backend, name, ttl=30)
    os.kill(own_redis.pid, signal.SIGSTOP)
    for act in (lambda: lease.renew(soon(0.5)), lambda: opened(own_redis.url()).try_acquire(grant(name), soon(0.5)),
                lambda: lease.release(finished(lease), soon(0.5))):  # fmt: skip
        started = clock.now()
        with pytest.raises(BackendError):
            act()
        assert clock.now() - started < 1.0
    backend.abandon(grant(name), soon(0.3))
    os.kill(own_redis.pid, signal.SIGCONT)


def test_look_ups_and_silent_addresses_end_in_time(opened: Callable[[str], Redis], monkeypatch: pytest.MonkeyPatch) -> None:
    import _socket

    real = _socket.getaddrinfo
    stop = threading.Event()

    def slow(*args: Any) -> Any:
        if args[5] & _socket.AI_NUMERICHOST:
            return real(*args)
        stop.wait(10)
        return real(*args)

    monkeypatch.setattr("cronlock.backends.dial._socket.getaddrinfo", slow)
    started = clock.now()
    with pytest.raises(BackendError, match=r"look|connect"):
        connect("redis://name.invalid").try_acquire(grant("x"), soon(0.3))
    assert clock.now() - started < 1
    stop.set()


def test_one_silent_address_does_not_cost_the_others(redis_server: RedisServer) -> None:
    import _socket

    from cronlock.backends.dial import dial

    full = _socket.socket()
    full.bind(("127.0.0.1", 0))
    full.listen(0)
    clients = []
    for _ in range(3):  # until the backlog is full, a SYN is dropped: a silent address
        clients.append(_socket.socket())
        clients[-1].setblocking(False)
        clients[-1].connect_ex(full.getsockname())
    found = [
        (_socket.AF_INET, full.getsockname()),
        (_socket.AF_INET, ("127.0.0.1", free_port())),
        (_socket.AF_INET, ("127.0.0.1", redis_server.port)),
    ]
    started = clock.now()
    dial(found, soon(1.5)).close()
    assert 0.3 < clock.now() - started < 1.0
    for s in (full, *clients):
        s.close()


# --- ways to the server


def test_unix_socket_and_ipv6(opened: Callable[[str], Redis], redis_server: RedisServer, name: str) -> None:
    lease = held(opened(f"unix://{redis_server.socket}?db=3"), name)
    assert isinstance(opened(redis_server.url(db=3)).try_acquire(grant(name), soon()), Busy)
    assert isinstance(opened(redis_server.url(db=3, host="[::1]")).try_acquire(grant(name), soon()), Busy)
    assert isinstance(opened(redis_server.url(db=3, host="localhost").replace("redis:", "valkey:")).try_acquire(grant(name), soon()), Busy)
    held(opened(redis_server.url(db=4)), name)
    lease.release(finished(lease), soon())
    with pytest.raises(BackendError):
        opened("unix:///nowhere/redis.sock").try_acquire(grant(name), soon(3))


def test_tls_is_checked_and_never_given_up(opened: Callable[[str], Redis], redis_tls: tuple[RedisServer, int, str], name: str) -> None:
    server, port, ca = redis_tls
    with pytest.raises(BackendError, match=r"(?i)certificate"):
        opened(f"rediss://127.0.0.1:{port}").try_acquire(grant(name), soon(5))
    with pytest.raises(BackendError, match=r"(?i)certificate|mismatch"):
        opened(f"rediss://localhost:{port}?ssl_ca_certs={ca}").try_acquire(grant(name), soon(5))
    started = clock.now()
    with pytest.raises(BackendError) as caught:
        opened(f"redis://127.0.0.1:{port}").try_acquire(grant(name), soon(5))
    assert "\n" not in str(caught.value) and clock.now() - started < 2
    # the server waits for the end of a line that TLS never sends: only the deadline helps
    with pytest.raises(BackendError, match="if that is a port for TLS"):
        opened(f"rediss://127.0.0.1:{server.port}?ssl_ca_certs={ca}").try_acquire(grant(name), soon(1))
    assert clock.now() - started < 4
    assert server.cli("KEYS", f"*{name}*") == []
    held(opened(f"rediss://127.0.0.1:{port}?ssl_ca_certs={ca}"), name)
    held(opened(f"valkeys://127.0.0.1:{port}?ssl_cert_reqs=none"), name + "2")
    held(opened(f"rediss://localhost:{port}?ssl_ca_certs={ca}&ssl_check_hostname=false"), name + "3")
    with pytest.raises(UsageError, match="rediss"):
        connect(f"redis://127.0.0.1:{port}?ssl_ca_certs={ca}")


# --- waiting


def waited(act: Callable[[], None], backend: Redis, name: str, limit: float = 10) -> float:
    """Seconds from `act` to the end of a wait that had begun before."""
    times: list[float] = []
    thread = threading.Timer(0.5, lambda: (times.append(clock.now()), act()))
    thread.start()
    until = soon(limit)
    while not times or backend.status(name, soon()).held:
        backend.wait(name, until)
        assert clock.now() < until
    thread.join()
    return clock.now() - times[0]


def test_a_waiter_is_woken(opened: Callable[[str], Redis], redis_url: str, name: str) -> None:
    lease, other = held(opened(redis_url), name, ttl=60), opened(redis_url)
    assert isinstance(other.try_acquire(grant(name), soon()), Busy)
    assert waited(lambda: lease.release(finished(lease), soon()), other, name) < 0.2
    assert other._ear and not other._deaf


def test_a_waiter_wakes_when_the_ttl_ends(opened: Callable[[str], Redis], redis_server: RedisServer, redis_url: str, name: str) -> None:
    held(opened(redis_url), name, ttl=60)
    key = lock_of(redis_url, name)
    assert waited(lambda: redis_server.cli("PEXPIRE", key, 300), opened(redis_url), name) < 0.3 + 1.3


def test_a_waiter_of_a_hold_without_its_key_gives_the_server_a_rest(
    opened: Callable[[str], Redis], redis_server: RedisServer, redis_url: str, name: str
) -> None:
    """Its holder died: the key is free, and the claim refused, so asking again at once helps nobody."""
    held(opened(redis_url), name, min_hold=60)
    redis_server.cli("DEL", lock_of(redis_url, name))
    other = opened(redis_url)
    assert isinstance(other.try_acquire(grant(name), soon()), Busy)
    started = clock.now()
    other.wait(name, started + 0.1)
    assert clock.now() - started >= 0.1


def test_a_waiter_that_may_not_subscribe_polls(opened: Callable[[str], Redis], user: Callable[..., tuple[str, str]], name: str) -> None:
    for rules in ((*O45, "+pttl"), (*BARE, "+pttl")):
        url, _ = user(*rules)
        lease, other = held(opened(url), name, ttl=60), opened(url)
        assert isinstance(other.try_acquire(grant(name), soon()), Busy)
        assert waited(lambda lease=lease: lease.release(finished(lease), soon()), other, name) < 0.5
        assert not other._ear


def test_a_signal_ends_a_wait_and_an_attempt(opened: Callable[[str], Redis], own_redis: RedisServer, name: str) -> None:
    def raising(signum: int, _: object) -> None:
        raise Interrupted(signum)

    backend, lease = opened(own_redis.url()), held(opened(own_redis.url()), name, ttl=60)
    before = signal.signal(signal.SIGUSR1, raising)
    try:
        for act in (
            lambda: poll(lambda: backend.wait(name, soon())),
            lambda: (os.kill(own_redis.pid, signal.SIGSTOP), lease.renew(soon())),
        ):
            signal.setitimer(signal.ITIMER_REAL, 0)
            threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
            started = clock.now()
            with pytest.raises(Interrupted):
                act()
            assert clock.now() - started < 1
    finally:
        signal.signal(signal.SIGUSR1, before)
        os.kill(own_redis.pid, signal.SIGCONT)
    lease.renew(soon())  # an answer to the interrupted question is not taken for this one's
    assert isinstance(backend.try_acquire(grant(name), soon()), Busy)


# --- round trips


def test_round_trips(
    opened: Callable[[str], Redis],
    redis_server: RedisServer,
    redis_proxy: Callable[[int], Proxy],
    user: Callable[..., tuple[str, str]],
    name: str,
) -> None:
    proxy = redis_proxy(redis_server.port)

    def trips(act: Callable[[], Any]) -> tuple[Any, int]:
        proxy.reset()
        return act(), proxy.trips

    url = redis_server.url(prefix=f"{name}:", port=proxy.port)
    lease, count = trips(lambda: held(opened(url), name))
    assert (count, proxy.connections) == (1, 1)
    answer, count = trips(lambda: opened(url).try_acquire(grant(name), soon()))
    assert isinstance(answer, Busy) and (count, proxy.connections) == (1, 1)
    assert trips(lambda: lease.renew(soon()))[1] == 1
    assert trips(lambda: lease.release(finished(lease), soon())) == (None, 1) and proxy.connections == 0

    bare, _ = user(*BARE)
    bare = bare.replace(f":{redis_server.port}", f":{proxy.port}")
    lease, count = trips(lambda: held(opened(bare), name))
    assert (count, proxy.connections) == (1 + 2, 1)  # log-in and two
    assert trips(lambda: opened(bare).try_acquire(grant(name), soon()))[1] == 1 + 1
    assert trips(lambda: lease.release(finished(lease), soon()))[1] == 2


def test_a_thousand_attempts_one_winner(redis_url: str, redis_server: RedisServer, name: str) -> None:
    for url in (redis_url, f"unix://{redis_server.socket}?prefix={name}:"):
        won: list[Lease] = []
        trouble: list[BaseException] = []

        def attempts(url: str = url, won: list[Lease] = won, trouble: list[BaseException] = trouble) -> None:
            for _ in range(50):
                backend = connect(url)
                try:
                    answer = backend.try_acquire(grant(name, ttl=60), soon())
                    if not isinstance(answer, Busy):
                        won.append(answer)  # type: ignore[arg-type]
                except BaseException as error:
                    trouble.append(error)
                finally:
                    backend.close()

        threads = [threading.Thread(target=attempts) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1 and not trouble


# --- URLs


BAD = [
    ("redis:", "names no server"),
    ("redis://", "no host"),
    ("redis:///0", "no host"),
    ("redis://:6379/0", "no host"),
    ("redis:host", "server"),
    ("redis://h:x", "port"),
    ("redis://h:0", "port"),
    ("redis://h:65536", "port"),
    ("redis://h:٣", "port"),
    ("redis://h:", "port"),
    ("redis://h/x", "number"),
    ("redis://h/-1", "number"),
    ("redis://h/0/1", "number"),
    ("redis://h/1?db=2", "twice"),
    ("redis://h?db=1&db=1", "twice"),
    ("redis://h?prefx=a", "did you mean ?prefix="),
    ("redis://h?password=a&S3cr3tXY=", "behind its password: an '&' in that"),
    ("redis://h?socket_connect_timeout=5", "connect_timeout"),
    ("redis://h?zzz=1", "known"),
    ("redis://h?connect_timeout=x", "duration"),
    ("redis://h?connect_timeout=0", "longer"),
    ("redis://h?prefix=a%0Ab", "control"),
    ("redis://::1", "brackets"),
    ("redis://[::1", "IPv6"),
    ("redis://[::1]x", "IPv6"),
    ("unix://host/x", "three slashes"),
    ("unix://", "path"),
    ("unix:/x", "unix:///PATH"),
    ("unix:///" + 107 * "x", "107 bytes"),
    ("redis://u@h", "password"),
    ("redis://u:p@h?password_file=/x", "one of them"),
    ("redis://h?ssl_ca_certs=x", "rediss"),
    ("rediss://h?ssl_cert_reqs=maybe", "required"),
    ("redis://a b/0", "blank"),
    ("redis://h/0#x", "#"),
]


@pytest.mark.parametrize(("url", "word"), BAD)
def test_bad_urls_are_usage_errors(url: str, word: str) -> None:
    with pytest.raises(UsageError) as caught:
        registry.open_backend(url)
    assert word in str(caught.value) and "\n" not in str(caught.value) and "S3cr3tXY" not in str(caught.value)


@pytest.mark.parametrize("raw", list("/#?@%"))
@pytest.mark.parametrize(
    "form", ["redis://us:S3cr{}3tXY@h:6379/0", "redis://:12{}zz34@h", "redis://us:S3cr{}3tXY@h/0?prefix=x", "unix://:S3cr{}3tXY@/s"]
)
def test_a_raw_special_character_is_named_the_password_is_not(form: str, raw: str) -> None:
    with pytest.raises(UsageError) as caught:
        connect(form.format(raw))
    text = str(caught.value)
    assert f"'{raw}'" in text and f"%{ord(raw):02X}" in text
    assert not any(part in text for part in ("S3cr", "3tXY", "12", "34"))


def test_where_names_the_store_without_its_password() -> None:
    for url, where in {
        "redis://h": "redis://h:6379",
        "redis://u:S3cr3tXY@h:1/2?prefix=a:": "redis://u@h:1/2?prefix=a:",
        "redis://:S3cr3tXY@[::1]": "redis://[::1]:6379",
        "unix://u:S3cr3tXY@/run/x.sock?db=1": "unix://u@/run/x.sock?db=1",
        "unix:///run/x.sock?username=u&password=S3cr3tXY": "unix:///run/x.sock",
        "rediss://h?ssl_password=S3cr3tXY&connect_timeout=2s": "rediss://h:6379",
    }.items():
        assert connect(url).where == where
        assert registry.open_backend(where.replace("u@", "")).where == where.replace("u@", "")
    assert connect("redis://h?connect_timeout=1m").timeout == 60 and connect("redis://h").timeout == 10


def test_the_key_for_people_is_the_lock(redis_server: RedisServer, redis_url: str) -> None:
    import shlex

    backend, name = connect(redis_url), "it's a job $x"
    words = shlex.split(backend.key(name))
    assert words[0] == "redis-cli" and str(redis_server.port) in words
    assert redis_server.cli(*words[words.index("SET") :]) == "OK"
    assert isinstance(backend.try_acquire(grant(name), soon()), Busy)
    backend.close()
    assert connect("unix:///a b?db=3").key("n").startswith("redis-cli -s '/a b' -n 3 SET 'cronlock:n'")


def test_every_url_is_a_backend_or_a_usage_error() -> None:
    hypothesis = pytest.importorskip("hypothesis")
    st = hypothesis.strategies
    piece = st.one_of(
        st.text(max_size=8), st.sampled_from(["//", "/", ":", "@", "?", "&", "=", "prefix=", "[", "]", "%", "%41", "1", "host"])
    )

    @hypothesis.given(st.sampled_from(["redis:", "rediss:", "unix:", "valkey:", "valkeys:"]), st.lists(piece, max_size=12))
    @hypothesis.settings(deadline=None)
    def check(scheme: str, pieces: list[str]) -> None:
        with suppress(UsageError):
            connect(scheme + "".join(pieces)).close()

    check()


def test_the_short_way_imports_no_redis_py() -> None:
    import subprocess
    import sys

    code = "import sys; from cronlock.backends.redis import connect\n"
    code += "connect('redis://u:p%40@h/1?prefix=x')\n"
    code += "print([m for m in ('redis', 'urllib', 'socket', 'ssl', 'typing', 're') if m in sys.modules])"
    path = str(Path(backend_module.__file__).parents[2])
    argv = [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {path!r})\n{code}"]
    run = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert run.stdout.strip() in ("[]", "['re']"), run.stdout + run.stderr  # re: state.py's json
