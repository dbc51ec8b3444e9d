"""check: each trap is set on a real server, and is seen with its remedy."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess

import psycopg
import pytest

from cronlock.backends import files_check
from fixtures_postgresql import Postgres
from fixtures_store import Listener
from shell import cronlock


@pytest.fixture
def check(ctl):
    """check(url) -> exit status, {subject: (level, text, remedy)}"""

    def ask(url, env=None, argv=()):
        answer = ctl(*argv, "check", "--json", backend=url, env=env)
        found = json.loads(answer.out)["findings"]
        return answer.status, {one["subject"]: (one["level"], one["text"], one["remedy"]) for one in found}

    return ask


def test_a_line_each_with_a_mark_and_the_remedy(ctl, store):
    answer = ctl("check", backend=store, env={"CRONLOCK_TTL": "8s"})
    assert answer.status == 1
    assert answer.out.startswith("✓ reachable    ")
    assert "\n! ttl          ttl 8s, renewed every 2.667s; on a loss 2s from TERM to KILL\n               → " in answer.out
    assert max(len(line) for line in answer.out.splitlines() if "://" not in line and "/" not in line) <= 80


@pytest.mark.parametrize("url", ["postgresql://127.0.0.1:1/x", "redis://127.0.0.1:1", "flock:///etc/passwd/x"])
def test_what_is_not_there(check, url):
    status, found = check(url)
    assert status == 2 and "trouble" in {level for level, *_ in found.values()}


def test_the_command_line(ctl, check, redis_server):
    secret = f"redis://:pw@127.0.0.1:{redis_server.port}"
    found = json.loads(ctl("-b", secret, "check", "--json").out)["findings"]
    assert ("password", "warning") in {(one["subject"], one["level"]) for one in found}
    assert check(secret)[1]["password"][0] == "ok"  # in the environment


def test_in_a_pod(check, store):
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert check(store, pod)[1]["pod"][0] == "warning"
    assert check(store, pod | {"CRONLOCK_CONFLICT_EXIT_CODE": "0"})[1]["pod"][0] == "ok"
    assert "pod" not in check(store)[1]


def test_a_clock_that_is_off(ctl, leased):
    faketime = shutil.which("faketime")
    if not faketime:
        pytest.skip("needs faketime")
    done = subprocess.run(
        [faketime, "-f", "+120s", str(cronlock().with_name("cronlockctl")), "check", "--json"],
        env={**os.environ, "CRONLOCK_BACKEND": leased, "FAKETIME_DONT_FAKE_MONOTONIC": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    found = {one["subject"]: one for one in json.loads(done.stdout)["findings"]}
    assert found["clock"]["level"] == "warning" and "120.0 s ahead of" in found["clock"]["text"]


# -- Redis


def test_o44_a_server_that_evicts(check, own_redis):
    assert check(own_redis.url())[1]["eviction"][0] == "ok"
    own_redis.cli("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    level, text, remedy = check(own_redis.url())[1]["eviction"]
    assert level == "warning" and "allkeys-lru" in text and "noeviction" in remedy


def test_memory_that_is_nearly_full(check, own_redis):
    used = int(dict(line.partition(":")[::2] for line in own_redis.cli("INFO", "memory").split("\r\n"))["used_memory"])
    own_redis.cli("CONFIG", "SET", "maxmemory", int(used * 1.05))
    assert check(own_redis.url())[1]["memory"][0] == "warning"


def test_persistence(check, own_redis):
    assert check(own_redis.url())[1]["persistence"][0] == "warning"
    own_redis.cli("CONFIG", "SET", "save", "60 1")
    assert check(own_redis.url())[1]["persistence"][0] == "ok"


def test_few_clients_left(check, own_redis):
    own_redis.cli("CONFIG", "SET", "maxclients", "5")
    assert check(own_redis.url())[1]["connections"][0] == "warning"


def test_a_replica_and_its_primary(check, start_redis, own_redis):
    replica = start_redis("--replicaof", "127.0.0.1", str(own_redis.port))
    status, found = check(replica.url())
    assert status == 2 and found["server"][0] == "trouble" and "primary" in found["server"][2]
    from fixtures_store import until

    until(lambda: "connected_slaves:1" in own_redis.cli("INFO", "replication"))
    assert check(own_redis.url())[1]["failover"][0] == "warning"


@pytest.mark.parametrize(
    ("rights", "level", "missing"),
    [
        ("+set +get +del +pexpire +eval +ping", "warning", "rpush"),
        ("+set +get +del +eval", "trouble", "pexpire"),
        ("+@all", "ok", ""),
    ],
)
def test_rights(check, own_redis, rights, level, missing):
    own_redis.cli("ACL", "SETUSER", "lk", "on", ">pw", "~cl:*", "&cl:*", *rights.split())
    found = check(own_redis.url("lk", "pw", prefix="cl:"))[1]["rights"]
    assert found[0] == level and missing in found[1], found
    assert own_redis.cli("KEYS", "*") == []  # what was tried is gone


# -- PostgreSQL


def test_a_standby(check, standby):
    status, found = check(f"postgresql://postgres@127.0.0.1:{standby}/postgres")
    assert status == 2 and "standby" in found["reachable"][1] and "primary" in found["reachable"][1]


def test_a_database_that_was_set_to_read_only(check, postgresql_server, postgresql_database, postgresql_url):
    with postgresql_server.admin() as admin:
        admin.execute(f"alter database {postgresql_database} set default_transaction_read_only = on")
    status, found = check(postgresql_url)
    assert status == 2 and found["server"][0] == "trouble" and "default_transaction_read_only" in found["server"][1]


def test_a_pooler(check, pooler, postgresql_url):
    assert check(pooler)[1]["pooler"][0] == "warning"
    assert check(postgresql_url)[1]["pooler"][0] == "ok"


def test_few_connections_left(check):
    server = Postgres("max_connections=13", "superuser_reserved_connections=2", "fsync=on")
    try:
        status, found = check(server.url())
        assert status == 1 and found["connections"][0] == "warning" and "lock_mode=lease" in found["connections"][2]
        with server.admin() as admin, server.admin():
            admin.execute("create role ordinary login password 'x'")
            found = check(server.url(user="ordinary", password="x"))[1]
            assert int(found["connections"][1].split()[0]) <= 7  # two are its own
        assert found["durability"][0] == "ok"
    finally:
        server.destroy()


def test_a_server_that_forgets(check, postgresql_url):
    assert check(postgresql_url)[1]["durability"] == (
        "warning",
        "fsync=off, synchronous_commit=on: a crash of the server may forget the last grants",
        "fsync=on, synchronous_commit=on",
    )


def test_keepalives_are_in_force(check, postgresql_url):
    assert check(postgresql_url)[1]["keepalives"] == ("ok", "a dead peer is noticed within 20 s", "")


def test_a_role_without_rights(check, finish, postgresql_server, postgresql_database, postgresql_url):
    role = f"r{postgresql_database}"
    with psycopg.connect(postgresql_url, autocommit=True) as admin:
        admin.execute(f"create role {role} login password 'x'")
        try:
            url = postgresql_server.url(postgresql_database, role, "x")
            status, found = check(url)
            assert status == 2 and "create table" in found["table"][2]
            assert finish("job", "true", backend=postgresql_url)[0] == 0
            status, found = check(url)
            assert status == 2 and "have the owner run: grant usage" in found["rights"][1]
        finally:
            admin.execute(f"drop role {role}")


# -- directories


def test_the_modes_of_a_directory(check, tmp_path):
    for mode, level in ((0o700, "ok"), (0o755, "ok"), (0o777, "warning"), (0o1777, "warning")):
        place = tmp_path / f"{mode:o}"
        place.mkdir()
        place.chmod(mode)
        found = check(f"flock://{place}")[1]
        assert found["directory"][0] == level, found
        assert found["locks"][0] == "ok"
        assert list(place.iterdir()) == []


def test_a_directory_that_is_not_there(check, finish, tmp_path):
    """What check says is what a run does."""
    for url, level, status in ((f"flock://{tmp_path}/new", "ok", 0), (f"flock://{tmp_path}/nosuch/new", "trouble", 78)):
        found = check(url)[1]
        assert found["directory"][0] == level, found
        assert finish("-b", url, "job", "true")[0] == status
    (*_, found) = files_check.directory(f"{tmp_path}/a/b", bool, parents=True)  # the default directory
    assert found.level == "ok"


def test_a_directory_in_memory(check):
    if not os.path.ismount("/dev/shm"):
        pytest.skip("needs /dev/shm")
    assert check("flock:///dev/shm/nowhere-yet")[1]["kept"][0] == "warning"


def test_a_mount(check, mirror):
    status, found = check(f"nfs://{mirror.mount}/locks?timeout=5s")
    assert found["mount"][0] == "ok" and "fuse.mirror" in found["mount"][1]
    (mirror.backing / "locks").mkdir()
    mirror.freeze()
    status, found = check(f"nfs://{mirror.mount}/locks?timeout=1s")
    assert status == 2 and "does not answer" in " ".join(text for _, text, _ in found.values())


@pytest.mark.parametrize("mirror", ["sshfs"], indirect=True)
def test_a_mount_that_does_not_share_locks(check, mirror):
    status, found = check(f"nfs://{mirror.mount}/locks?timeout=5s")
    assert status == 2 and found["mount"][0] == "trouble" and "two machines" in found["mount"][1]


def test_a_share_that_is_not_mounted(check, tmp_path):
    status, found = check(f"nfs://{tmp_path}/locks")
    assert status == 2 and found["mount"][:2] == ("trouble", "there is none, so locks would be shared by this machine only")


def test_the_options_of_a_mount():
    from cronlock.backends import files_check, mounts

    def level(options):
        line = f"36 35 0:50 / /mnt rw,relatime shared:1 - nfs srv:/x rw,vers=3,{options}"
        return [one.level for one in files_check.mount(mounts.table(line)[0])]

    assert level("hard,local_lock=none") == ["ok"]
    assert level("soft,local_lock=none") == ["warning"]
    assert level("hard,local_lock=all") == ["trouble"]


def test_a_slow_store(check, redis_server):
    """Every answer comes 0.6 s late."""
    import threading
    import time

    def pump(source, sink, delay):
        try:
            while data := source.recv(65536):
                time.sleep(delay)
                sink.sendall(data)
        except OSError:
            pass
        finally:
            sink.close()

    def talk(client):
        server = socket.create_connection(("127.0.0.1", redis_server.port))
        threading.Thread(target=pump, args=(server, client, 0.6), daemon=True).start()
        pump(client, server, 0)

    listener = Listener(talk)
    found = check(f"redis://127.0.0.1:{listener.port}")[1]
    listener.close()
    assert found["latency"][0] == "warning"
