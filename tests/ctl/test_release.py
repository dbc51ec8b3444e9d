"""release: the holder ends as lost, never regains, and nobody overlaps it."""

from __future__ import annotations

import getpass
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures_store import until

HERE = os.uname().nodename
CRONLOCKCTL = str(Path(sys.executable).with_name("cronlockctl"))


def outcomes(ctl, store, name="job"):
    return [run["outcome"] for run in json.loads(ctl("history", name, "--json", backend=store).out)["runs"]]


def test_the_holder_ends_as_lost_and_never_regains(ctl, holder, finish, store, tmp_path):
    process = holder("job", "--ttl", "3s")
    answer = ctl("release", "job", "--yes", backend=store)
    assert answer.status == 0, answer
    assert answer.out.startswith(f"job is held by {HERE}, pid {process.pid}, user ")
    assert "taken away" in answer.out
    status, _, err = process.end()
    assert status == 76 and "regained" not in err
    assert f"taken away by {getpass.getuser()} on {HERE} (cronlockctl release); the command is stopped\n" in err
    assert outcomes(ctl, store) == ["lost"]
    assert finish("--wait", "10s", "job", "true", backend=store)[0] == 0
    assert outcomes(ctl, store) == ["lost", "ok"]


def test_it_asks_and_no_means_no(ctl, holder, store, tmp_path):
    process = holder("job")
    assert ctl("release", "job", stdin="n\n", backend=store).status == 1
    answer = ctl("release", "job", stdin="", backend=store)
    assert (answer.status, answer.err) == (64, "cronlockctl: nobody answered, so nothing was taken away: --yes does not ask\n")
    closed = ["sh", "-c", f"{CRONLOCKCTL} release job <&-"]
    assert subprocess.run(closed, env=os.environ | {"CRONLOCK_BACKEND": store}, capture_output=True).returncode == 64
    (tmp_path / "go").touch()
    assert process.end()[0] == 0


@pytest.mark.parametrize("store", ["flock"], indirect=True)
def test_ctrl_c_takes_nothing_away(holder, store, tmp_path):
    process = holder("job")
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([CRONLOCKCTL, "release", "job"], env=os.environ | {"CRONLOCK_BACKEND": store}, **pipes) as asked:
        while asked.stdout.read(1) not in (b"]", b""):  # [y/N]
            pass
        until(lambda: Path(f"/proc/{asked.pid}/stat").read_text().rpartition(")")[2].split()[0] == "S")  # it waits for the answer
        asked.send_signal(signal.SIGINT)
        assert (asked.wait(10), asked.stderr.read()) == (130, b"")
    (tmp_path / "go").touch()
    assert process.end()[0] == 0


def test_yes_means_yes(ctl, holder, store):
    process = holder("job", "--ttl", "3s")
    assert ctl("release", "job", stdin="y\n", backend=store).status == 0
    assert process.end()[0] == 76


def test_nothing_to_release(ctl, past, store):
    assert ctl("release", "job", "--yes", backend=store)[:2] == (1, "job is not held\n")
    past("job")
    assert ctl("release", "job", "--yes", backend=store).status == 1
    assert outcomes(ctl, store) == ["ok"]


@pytest.mark.parametrize("store", ["postgresql", "redis"], indirect=True)
def test_a_skipped_start_says_who_took_it(ctl, holder, finish, store):
    holder("job", "--ttl", "30s")
    ctl("release", "job", "--yes", backend=store)
    status, _, err = finish("-v", "job", "true", backend=store)
    who = f"{getpass.getuser()} on {HERE}"
    assert status == 75 and f"busy: taken away by {who} (cronlockctl release); its holder may still be stopping" in err
    assert ctl("status", "job", backend=store).out.startswith("job: released\n")


@pytest.mark.parametrize("store", ["flock"], indirect=True)
def test_a_frozen_holder_of_a_file_lock_is_woken(ctl, holder, store):
    process = holder("job")
    os.kill(process.pid, signal.SIGSTOP)
    answer = ctl("release", "job", "--yes", backend=store)
    assert "the holder has let go" in answer.out
    assert process.end()[0] == 76


@pytest.mark.parametrize("store", ["flock"], indirect=True)
def test_a_command_that_holds_the_lock_itself_gets_term(ctl, start, store, tmp_path):
    process = start("-F", "job", "sh", "-c", f"touch {tmp_path}/in; exec sleep 60", backend=store)
    until((tmp_path / "in").exists)
    answer = ctl("release", "job", "--yes", backend=store)
    assert f"TERM was sent to pid {process.pid}, which has let go" in answer.out
    assert process.end()[0] == -signal.SIGTERM


def test_where_only_the_record_tells_nobody_claims_that_the_holder_has_let_go(ctl, start, mirror, tmp_path):
    """It looks at its next renewal, and may be on another machine."""
    store = f"nfs://{mirror.mount}/locks"
    process = start("--ttl", "3s", "job", "sh", "-c", f"touch {tmp_path}/in; exec sleep 60", backend=store)
    until((tmp_path / "in").exists)
    answer = ctl("release", "job", "--yes", backend=store)
    assert answer.status == 0 and "at the holder's next look; this file system does not tell when" in answer.out
    assert "does not tell who holds a lock" in ctl("status", "job", backend=store).out
    assert process.end()[0] == 76


def test_a_script_that_holds_the_lock_is_left_alone(ctl, postgresql_url, redis_url, tmp_path):
    """What has left no record cannot be asked to stop."""
    import redis

    client = redis.Redis.from_url(redis_url.partition("?")[0])
    prefix = redis_url.rpartition("prefix=")[2].replace("%3A", ":")
    client.set(prefix + "job", "a script", px=60000)
    answer = ctl("release", "job", "--yes", backend=redis_url)
    assert answer.status == 1 and "something else" in answer.out
    assert client.get(prefix + "job") == b"a script"
    client.close()
