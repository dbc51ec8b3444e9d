"""Public cases: what cron's bare environment lacks. tests/shell.py explains `timed` and `await`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from fixtures_postgresql import Postgres
from shell import Shell, need_root

ERR = {"69", "77", "78"}  # the job was not run, and not because somebody else runs it


def test_o49_nothing_is_needed_from_path(sh):
    """The prefix finds its own helpers: no redis-cli, psql or flock on PATH."""
    # a ping under PATH=/nonexistent waits for --heartbeat
    done = sh.run(
        """
        env -i HOME=/ SHELL=/bin/sh PATH=/nonexistent CRONLOCK_BACKEND="$CRONLOCK_BACKEND" $(command -v cronlock) i1 -- /bin/true
        echo rc=$?
        """
    )
    assert (done["rc"], done.err) == ("0", "")


def test_o49_a_command_that_is_not_found(sh):
    """127, with its name and the PATH that was searched, and the lock is free again. (Its fail ping waits for --heartbeat.)"""
    done = sh.run(
        """
        env -i PATH=/usr/bin:/bin CRONLOCK_BACKEND="$CRONLOCK_BACKEND" $(command -v cronlock) i1 -- no-such-tool; echo rc=$?
        timed next cronlock i1 -- true
        """
    )
    assert (done["rc"], done["next"]) == ("127", "0")
    assert "no-such-tool" in done.err
    assert "PATH=/usr/bin:/bin" in done.err
    assert done.err.count("\n") == 1


@pytest.fixture(scope="module")
def guarded() -> Iterator[Postgres]:
    """A server that asks for a password."""
    server = Postgres(authentication="scram-sha-256")
    yield server
    server.destroy()


@pytest.fixture
def cl(guarded):
    """A shell, and a URL without password for a role that needs one."""
    with closing(guarded.admin()) as admin:
        admin.execute("drop owned by cl; drop role cl" if admin.execute("select from pg_roles where rolname = 'cl'").rowcount else "select")
        admin.execute("create role cl login password 'pw'")
        admin.execute("grant create on schema public to cl")
    with Shell(f"postgres://cl@127.0.0.1:{guarded.port}/postgres") as sh:
        sh.pgpass = f"127.0.0.1:{guarded.port}:*:cl:pw\n"
        yield sh


def test_o51_no_password_and_no_prompt(cl):
    """Without HOME and without a password file it is an error in time, on a terminal too, and nobody is asked anything."""
    done = cl.run(
        """
        timed rc env -i PATH="$PATH" CRONLOCK_BACKEND="$CRONLOCK_BACKEND" cronlock i4 -- touch $T/ran
        timed terminal sh -c "script -qec 'cronlock i4 -- touch $T/ran' $T/typescript >/dev/null"
        cat $T/typescript
        ls $T
        """
    )
    for run in ("rc", "terminal"):
        assert done[run] in ERR
        assert done.took(run) < 10
    assert "ran" not in done.out.split()
    assert "Password" not in done.out
    assert done.err.count("\n") == 1


def test_o51_the_error_names_the_file_that_was_looked_for(cl):
    """Whoever wrote a .pgpass must see where it was expected."""
    done = cl.run("PGPASSFILE=$T/pgpass cronlock i4 -- true; HOME=$T cronlock i4 -- true")
    first, second = done.err.splitlines()
    assert f"{cl.T}/pgpass" in first
    assert f"{cl.T}/.pgpass" in second


def test_o51_a_password_file_is_used(cl):
    """~/.pgpass of mode 0600, or $PGPASSFILE; without and with a terminal."""
    (cl.home / "home" / ".pgpass").write_text(cl.pgpass)
    (cl.home / "home" / ".pgpass").chmod(0o600)
    done = cl.run(
        """
        env -i HOME="$HOME" PATH="$PATH" CRONLOCK_BACKEND="$CRONLOCK_BACKEND" cronlock i4 -- true; echo home=$?
        env -i PGPASSFILE="$HOME/.pgpass" PATH="$PATH" CRONLOCK_BACKEND="$CRONLOCK_BACKEND" cronlock i4 -- true; echo file=$?
        script -qec 'cronlock i4 -- true' /dev/null; echo terminal=$?
        """
    )
    assert (done["home"], done["file"], done["terminal"], done.err) == ("0", "0", "0", "")


@pytest.mark.root
def test_o51_the_home_of_the_password_database(cl):
    """Where cron sets no HOME, the account's own one is meant."""
    need_root()
    (cl.home / "home" / ".pgpass").write_text(cl.pgpass)
    (cl.home / "home" / ".pgpass").chmod(0o600)
    done = cl.run(
        """
        echo "root:x:0:0:root:$HOME:/bin/sh" >$T/passwd; mount --bind $T/passwd /etc/passwd
        env -i PATH="$PATH" CRONLOCK_BACKEND="$CRONLOCK_BACKEND" cronlock i4 -- true; echo rc=$?
        """
    )
    assert (done["rc"], done.err) == ("0", "")


@pytest.mark.root
@pytest.mark.parametrize("store", ["flock"])
def test_a_user_whom_no_password_database_knows(sh):
    """docker run --user 54321, and no HOME: only the default directory needs one."""
    need_root()
    done = sh.run(
        """
        unset HOME
        cronlock n -- true; echo rc=$?
        cronlockctl status; echo status=$?
        cronlockctl check; echo check=$?
        cronlock -b flock: n -- true; echo default=$?
        """,
        nobody=54321,
    )
    assert [done[what] for what in ("rc", "status", "default")] == ["0", "0", "77"]
    assert done["check"] in "01"  # it warns of a host's own: a /tmp that a reboot empties
    assert "/.local/state/cronlock: permission denied for uid 54321" in done.err


@pytest.mark.root
@pytest.mark.parametrize("store", ["flock"])
def test_a_path_that_another_user_keeps_to_himself(sh):
    """The advice that helps with a plain NAME, to give a path, would be none."""
    need_root()
    done = sh.run(
        "cronlock /etc/shadow true; echo file=$?; cronlock /etc/nosuch.lock true; echo new=$?; cronlock n true; echo n=$?", nobody=True
    )
    path, new = done.err.splitlines()
    assert (done["file"], done["new"], done["n"]) == ("77", "77", "0")
    assert path.startswith("cronlock: /etc/shadow: ") and "able to make it, and readable" in path and "absolute path as NAME" not in path
    assert new.startswith("cronlock: /etc/nosuch.lock: /etc belongs to uid 0")


@pytest.mark.parametrize("store", ["flock"])
def test_a_host_without_room_for_a_process(sh):
    """The command was not started, and that is said as such: it is no defect of ours, and the lock is let go."""
    done = sh.run("prlimit --nproc=1 cronlock n -- true; echo rc=$?; cronlock n -- true; echo next=$?; cronlockctl history n", nobody=True)
    assert (done["rc"], done["next"]) == ("126", "0")
    assert done.err == "cronlock: true: cannot be executed: Resource temporarily unavailable\n"
    assert "failed" in done.out and "vanished" not in done.out
