"""Public cases: what others can read, and what must not be read. tests/shell.py explains `timed` and `await`."""

from __future__ import annotations

import uuid
from urllib.parse import urlsplit

import pytest

SECRET = "S3cr3tXY"


def only(*stores):
    return pytest.mark.parametrize("store", stores)


@only("redis", "postgresql")
def test_o75_names_that_people_can_read(sh, store):
    """The lock's name is in the Redis key or PostgreSQL's application_name. (`cronlock --list` waits for cronlockctl status.)"""
    look = {
        "redis": "redis-cli KEYS '*nightly-report'",
        "postgresql": 'sql "select application_name from pg_stat_activity where datname = current_database()"',
    }
    (sh.T / "look").write_text(look[store])
    done = sh.run("cronlock nightly-report -- sh $T/look")
    assert "nightly-report" in done.out


URLS = {"redis": f"redis://u:{SECRET}@127.0.0.1:1", "postgresql": f"postgresql://u:{SECRET}@127.0.0.1:1/d"}


@only("redis", "postgresql")
def test_o77_no_error_contains_the_password(sh, store):
    """Not of a dead server, with -v either."""
    done = sh.run("cronlock q1 -- true; echo rc=$?; cronlock -v q1 -- true", CRONLOCK_BACKEND=URLS[store])
    assert done["rc"] == "69"
    assert done.err
    assert SECRET not in done.err


@pytest.fixture
def with_password(request, store):
    """A URL of the real server with the secret in it."""
    if store == "postgresql":
        server, database = request.getfixturevalue("postgresql_server"), request.getfixturevalue("postgresql_database")
        yield server.url(database, password=SECRET)  # trusts every password
        return
    server, user = request.getfixturevalue("redis_server"), f"u{uuid.uuid4().hex[:8]}"
    server.cli("ACL", "SETUSER", user, "on", f">{SECRET}", "~*", "&*", "+@all")
    yield server.url(user, SECRET, prefix=f"{user}:")
    server.cli("ACL", "DELUSER", user)


@only("redis", "postgresql")
def test_o77_no_process_shows_the_password(sh, with_password):
    """Given in the environment it is in nobody's ps, in no line of -v, and not in what we tell the command."""
    done = sh.run(
        """
        cronlock -v -v q1 -- sh -c '
            grep -al $LOOK_FOR /proc/[0-9]*/cmdline
            echo store=$CRONLOCK_RUN_STORE
            env | grep -a $LOOK_FOR | cut -d= -f1'
        echo rc=$?
        """,
        CRONLOCK_BACKEND=with_password,
        DIRECT="",
        LOOK_FOR=SECRET[:-2] + "[X]Y",
    )
    assert done["rc"] == "0"
    assert done.err
    assert SECRET not in done.err
    assert urlsplit(with_password).hostname in done["store"]
    assert [line for line in done.out.splitlines() if "=" not in line] == ["CRONLOCK_BACKEND"]


@only("redis", "postgresql")
def test_o77_a_password_on_the_command_line_is_warned_about(sh, with_password):
    """Everybody's ps shows it there: said in a line that does not repeat it."""
    done = sh.run(f"cronlock --backend '{with_password}' q1 -- true; echo rc=$?")
    assert done["rc"] == "0"
    assert "password" in done.err
    assert SECRET not in done.err


def test_o78_nothing_in_the_working_directory_is_read(sh):
    """A config file lying about there is neither executed nor obeyed. (--config, its rights and its precedence wait for config files.)"""
    done = sh.run(
        """
        for name in cronlock.conf cronlock.toml .cronlock .cronlockrc cronlock.ini; do
            printf 'name=$(touch %s/pwn)\\nbackend=nonsense:\\nttl=0\\n' $T >$name
        done
        cronlock -- true; echo nameless=$?
        cronlock q2 -- touch $T/ran; echo rc=$?
        ls -a $T
        """
    )
    assert (done["nameless"], done["rc"]) == ("64", "0")
    assert "pwn" not in done.out.split()
    assert "ran" in done.out.split()
