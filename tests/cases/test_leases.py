"""Public cases: what holds a lock, and what does not count as one. tests/shell.py explains `timed` and `await`."""

from __future__ import annotations

import os
import shutil
import uuid
from urllib.parse import parse_qs, urlsplit

import pytest

import hosts

SLACK = 2.0  # seconds that a busy machine may add to what a case allows
ERR = {"69", "77", "78"}  # the job was not run, and not because somebody else runs it
ADVISORY = """
select count(*) from pg_locks
where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())
"""


def only(*stores):
    return pytest.mark.parametrize("store", stores)


def redis_key(sh, name):
    return parse_qs(urlsplit(sh.backend).query)["prefix"][0] + name


@pytest.mark.parametrize("step", ["+3600", "-3600"])
def test_o11_a_step_of_the_clock_changes_no_wait(sh, step):
    """--wait 2 are two seconds, whatever NTP does to the wall clock meanwhile."""
    library, shim = hosts._libfaketime(), hosts._sleep_shim(sh.home)
    if not library or not shim:
        pytest.skip("needs faketime and a C compiler")
    (sh.home / "clock").write_text("+0")
    done = sh.run(
        f"""
        cronlock b7 -- sh -c 'touch $T/in; exec sleep 30' & w=$!
        await test -e $T/in
        (sleep .7; echo '{step}' >$CLOCK) &
        export LD_PRELOAD="{shim} {library}" FAKETIME_TIMESTAMP_FILE=$CLOCK FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1
        before=$(date +%s)
        env -u CLOCK cronlock --wait 2 b7 -- true; echo rc=$?
        echo seen=$(($(date +%s) - before))
        unset LD_PRELOAD
        kill $w; wait
        """,
        CLOCK=str(sh.home / "clock"),
    )
    assert done["rc"] == "75"
    assert 1 <= int(done["seen"]) - int(step) <= 3 + SLACK


@only("redis")
def test_o13_a_job_longer_than_the_ttl(sh):
    """The lease is renewed at a third of its ttl: nobody else gets in, and the key is never near its end."""
    done = sh.run(
        """
        cronlock --ttl 3 c2 -- sh -c 'echo r >>$T/hits; sleep 5; touch $T/over' & w=$!
        await test -e $T/hits
        until [ -e $T/over ]; do
            echo ttl $(redis-cli PTTL $KEY)
            [ -e $T/over ] || { cronlock --ttl 3 c2 -- true; echo try $? $(ls $T/over 2>/dev/null); }
        done; wait $w; echo rc=$?
        """,
        KEY=redis_key(sh, "c2"),
    )
    tries = [line for line in done.out.splitlines() if line.startswith("try ") and "over" not in line]
    ttls = [int(line.split()[1]) for line in done.out.splitlines() if line.startswith("ttl ")]
    assert len(tries) >= 2
    assert set(tries) == {"try 75"}
    assert min(ttls[:-1]) >= 1000
    assert done["rc"] == "0"


@only("redis")
def test_o15_a_foreign_lock_is_not_released(sh):
    """Whose key was taken over meanwhile leaves it alone at the end, and says that it was not its own."""
    done = sh.run(
        """
        cronlock --ttl 60 --on-lost continue c4 -- sh -c 'redis-cli SET $KEY other EX 60; sleep 1'; echo first=$?
        echo key=$(redis-cli GET $KEY)
        cronlock c4 -- true; echo rc=$?
        """,
        KEY=redis_key(sh, "c4"),
    )
    assert (done["first"], done["key"], done["rc"]) == ("0", "other", "75")
    assert "not ours" in done.err or "lock lost" in done.err


@only("postgresql")
def test_o35_the_session_stays_open(sh):
    """The advisory lock is there while the job runs, and gone after it."""
    done = sh.run('cronlock g2 -- sh -c "sql \\"$COUNT\\""; sql "$COUNT"', COUNT=ADVISORY)
    assert done.out.split() == ["1", "0"]


REPLIES = ["-READONLY x", "-NOAUTH x", "-LOADING x", "-MISCONF x", "-OOM x", "-ERR unknown command", ":1", "+QUEUED", "garbage", ""]


@only("redis")
def test_o42_an_error_reply_is_not_a_lock(sh, fixed_reply_server):
    """Only +OK is a grant and only nil is busy: every other reply is an error, in time, without the job and without the password."""
    ports = {reply: fixed_reply_server(reply) for reply in REPLIES}
    lines = [
        f"timed '{reply}{login}' cronlock -b 'redis://{login}127.0.0.1:{port}?connect_timeout=3s' h1 -- touch $T/ran &"
        for reply, port in ports.items()
        for login in ("", ":S3cr3tXY@")
    ]
    done = sh.run("\n".join([*lines, "wait; ls $T"]))
    for reply in REPLIES:
        for login in ("", ":S3cr3tXY@"):
            assert done[reply + login] in ERR, reply
            assert done.took(reply + login) < 10 + SLACK
    assert "ran" not in done.out.split()
    assert "S3cr3tXY" not in done.err.replace("is on the command line", "")


@only("redis")
def test_o42_nil_is_busy(sh, fixed_reply_server):
    """The reply that means somebody else has it."""
    done = sh.run(f"cronlock -b redis://127.0.0.1:{fixed_reply_server('$-1')} h1 -- touch $T/ran; echo rc=$?; ls $T")
    assert done["rc"] == "75"
    assert "ran" not in done.out.split()


@only("redis")
@pytest.mark.parametrize(
    "rights", ["+set +get +del +pexpire +eval +evalsha +ping", "+set +get +del +pexpire +ping"], ids=["eval", "no-eval"]
)
def test_o45_a_user_limited_to_a_prefix(sh, redis_server, rights):
    """The least rights do: taken, renewed and released without one refusal; only the lock's state stays, under the prefix."""
    user = f"lk{uuid.uuid4().hex[:8]}"
    redis_server.cli("ACL", "SETUSER", user, "on", ">pw", f"~{user}:*", "resetchannels", "-@all", *rights.split())
    redis_server.cli("ACL", "LOG", "RESET")
    try:
        done = sh.run(
            "timed rc cronlock --ttl 1.5 h4 -- sleep 2.5; cronlock h4 -- true; echo next=$?",
            CRONLOCK_BACKEND=redis_server.url(user, "pw", prefix=f"{user}:"),
        )
        log = redis_server.cli("ACL", "LOG")
        keys = redis_server.cli("KEYS", f"*{user}*")
    finally:
        redis_server.cli("ACL", "DELUSER", user)
    assert (done["rc"], done["next"], done.err) == ("0", "0", "")
    assert f"{user}:h4" not in keys
    assert all(key.startswith(f"{user}:") for key in keys)
    if "+eval" in rights:
        assert not log, f"NOPERM: {log}"
    else:  # whether it may is found out by trying, once a run
        assert {entry[entry.index("object") + 1] for entry in log} == {"eval"}


DEAD = {"redis": "redis://127.0.0.1:1", "postgresql": "postgresql://127.0.0.1:1/d", "flock": ""}


def test_o46_without_the_backend_the_job_does_not_run(sh, store):
    """A store that is down or closed to this user is an error of its own, quick, in one line, and nothing runs."""
    dead = DEAD[store] or f"flock://{sh.T}/closed"
    done = sh.run("mkdir $T/closed; chmod 0 $T/closed; timed rc cronlock h5 -- touch $T/ran; ls $T", nobody=True, CRONLOCK_BACKEND=dead)
    assert done["rc"] in ERR
    assert done.took("rc") < 5
    assert "ran" not in done.out.split()
    assert done.err.count("\n") == 1


@only("flock")
def test_o46_a_lock_file_in_a_closed_directory(sh):
    """The same for a path of one's own."""
    done = sh.run("mkdir $T/dir; chmod 0 $T/dir; cronlock $T/dir/l -- touch $T/ran; echo rc=$?; ls $T", nobody=True)
    assert done["rc"] in ERR
    assert "ran" not in done.out.split()
    assert str(sh.T) in done.err


@only("redis", "postgresql")
def test_o46_run_anyway_is_the_users_decision(sh, store):
    """--on-unavailable run: the job's own status, and a line that says it ran without a lock."""
    done = sh.run("cronlock --on-unavailable run h5 -- sh -c 'exit 6'; echo rc=$?", CRONLOCK_BACKEND=DEAD[store])
    assert done["rc"] == "6"
    assert "without a lock" in done.err
    assert done.err.count("\n") == 1


@only("redis")
def test_o47_tls_is_used_and_checked(sh, redis_tls):
    """rediss:// refuses a certificate of an unknown CA, takes the named one, and clear text to a TLS port ends quickly."""
    _, port, ca = redis_tls
    shutil.copy(ca, sh.T / "ca.pem")
    os.chmod(sh.T / "ca.pem", 0o644)
    done = sh.run(
        f"""
        cronlock -b 'rediss://127.0.0.1:{port}' h6 -- touch $T/ran; echo noca=$?
        cronlock -b "rediss://127.0.0.1:{port}?ssl_ca_certs=$T/ca.pem" h6 -- true; echo ca=$?
        cronlock -b "rediss://localhost:{port}?ssl_ca_certs=$T/ca.pem" h6 -- touch $T/ran; echo host=$?
        timed clear cronlock -b 'redis://127.0.0.1:{port}' h6 -- touch $T/ran
        ls $T
        """
    )
    assert done["noca"] in ERR
    assert "certificate" in done.err.splitlines()[0].lower()
    assert done["ca"] == "0"
    assert done["host"] in ERR  # the certificate is for 127.0.0.1 only
    assert done["clear"] in ERR
    assert done.took("clear") < 10 + SLACK
    assert "ran" not in done.out.split()
