"""Public cases: lock files among users, links and reboots. tests/shell.py explains `timed` and `await`."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path

import pytest

from shell import need_root

ERR = {"69", "77", "78"}  # the job was not run, and not because somebody else runs it

MODES = {"700", "755"}

pytestmark = pytest.mark.parametrize("store", ["flock"])


@contextmanager
def protected_regular():
    """Debian's setting: even root may not open another user's file in a sticky directory with O_CREAT."""
    switch = Path("/proc/sys/fs/protected_regular")
    before = switch.read_text()
    try:
        switch.write_text("2")
    except OSError as error:
        pytest.skip(f"fs.protected_regular cannot be set here: {error}")
    try:
        yield
    finally:
        switch.write_text(before)


@pytest.mark.root
def test_o67_another_users_file_in_a_sticky_directory(sh):
    """What nobody has made, root can lock as well, and is not told that it is busy."""
    need_root()
    (sh.T / "s").mkdir()
    (sh.T / "s").chmod(0o1777)
    done = sh.run("cronlock $T/s/l -- true; echo rc=$?", nobody=True)
    assert done["rc"] == "0"
    assert (sh.T / "s" / "l").stat().st_uid == 65534
    with protected_regular():
        done = sh.run("flock -n $T/s/l true; echo flock=$?; cronlock $T/s/l -- touch $T/ran; echo rc=$?; ls $T")
    assert done["flock"] == "66"  # the trap is set: flock(1) falls into it
    assert done["rc"] == "0"
    assert "ran" in done.out.split()


def test_o68_a_link_in_place_of_the_lock_file(sh):
    """It is not followed: nothing behind it is locked, written or made."""
    done = sh.run(
        """
        mkdir $T/s; echo keep >$T/victim; ln -s $T/victim $T/s/l; ln -s $T/new $T/s/l2
        cronlock $T/s/l -- touch $T/ran; echo there=$?
        cronlock $T/s/l2 -- touch $T/ran; echo nowhere=$?
        mkdir $T/locks; ln -s $T/victim $T/locks/n.lock; ln -s $T/new $T/locks/n2.lock
        cronlock n -- touch $T/ran; echo named=$?
        cronlock n2 -- touch $T/ran; echo named2=$?
        echo victim=$(cat $T/victim)
        ls $T
        """
    )
    for run in ("there", "nowhere", "named", "named2"):
        assert done[run] in ERR
    assert done["victim"] == "keep"
    assert not {"ran", "new"} & set(done.out.split())


def test_o68_a_pipe_in_place_of_the_lock_file(sh):
    """Is refused at once; opening it does not hang."""
    done = sh.run(
        """
        mkfifo $T/f; timed own timeout 20 cronlock $T/f -- touch $T/ran
        mkdir $T/locks; mkfifo $T/locks/n.lock; timed named timeout 20 cronlock n -- touch $T/ran
        ls $T
        """
    )
    for run in ("own", "named"):
        assert done[run] in ERR
        assert done.took(run) < 5
    assert "ran" not in done.out.split()


def test_o68_a_link_or_a_pipe_beside_the_lock_file(sh):
    """History, and a record that is moved aside: the job runs, nothing behind a link is written, and no pipe is waited for."""
    done = sh.run(
        """
        mkdir $T/locks; cd $T/locks; echo keep >$T/victim; echo junk >n.lock
        for file in n.runs n.lock.broken m.runs.new; do ln -s $T/victim $file; done
        mkfifo p.runs; for i in $(seq 200); do echo old; done >m.runs
        for name in n m p; do timed $name timeout 20 cronlock $name true; done
        cronlockctl history p
        echo victim=$(cat $T/victim)
        """
    )
    assert [done[what] for what in ("n", "m", "p", "victim")] == ["0", "0", "0", "keep"]
    assert "n.lock.broken can't be written: Too many levels of symbolic links" in done.err


def test_o69_the_default_directory_is_made_again(sh):
    """After a reboot it is there when it is needed, and nobody else may write into it."""
    done = sh.run(
        """
        dir=$HOME/.local/state/cronlock
        cronlock n3 -- true; echo first=$?
        rm -r $dir
        cronlock n3 -- true; echo rc=$?
        echo mode=$(stat -c %a $dir) $(ls $dir)
        """,
        nobody=True,
        CRONLOCK_BACKEND="flock:",
    )
    assert (done["first"], done["rc"]) == ("0", "0")
    mode, *files = done["mode"].split()
    assert mode in MODES
    assert "n3.lock" in files


@pytest.mark.root
def test_o69_roots_default_directory_is_made_again(sh):
    """/var/lib/cronlock."""
    need_root()
    done = sh.run(
        "rm -rf /var/lib/cronlock; cronlock n3 -- true; echo rc=$?; echo mode=$(stat -c %a /var/lib/cronlock)", CRONLOCK_BACKEND="flock:"
    )
    assert done["rc"] == "0"
    assert done["mode"] in MODES


def test_o69_of_a_given_path_only_the_last_part_is_made(sh):
    """A missing parent is an error with the path, not a directory made by guess."""
    done = sh.run(
        """
        cronlock $T/no/such/dir/l -- touch $T/ran; echo name=$?
        cronlock -b flock://$T/no/such n -- touch $T/ran; echo url=$?
        cronlock -b flock://$T/made n -- true; echo last=$?
        ls $T
        """
    )
    assert done["name"] in ERR
    assert done["url"] in ERR
    assert done["last"] == "0"
    assert not {"ran", "no"} & set(done.out.split())
    assert all(str(sh.T / "no") in line for line in done.err.splitlines())


def test_o70_what_the_file_says_decides_nothing(sh):
    """A pid of somebody living, of init, or a megabyte of zeros: only the kernel's lock counts, and the file is left as it was."""
    done = sh.run(
        """
        echo $$ >$T/l; cronlock $T/l -- true; echo own=$?; [ "$(cat $T/l)" = $$ ]; echo kept=$?
        echo 1 >$T/l; cronlock $T/l -- true; echo init=$?
        head -c 1000000 /dev/zero >$T/l; cronlock $T/l -- true; echo zeros=$?; echo size=$(stat -c %s $T/l)
        mkdir $T/locks
        for text in $$ 1; do echo $text >$T/locks/n.lock; cronlock n -- true; echo named$text=$?; done; echo last=$?
        head -c 1000000 /dev/zero >$T/locks/n.lock; cronlock n -- true; echo namedzeros=$?
        """
    )
    assert (done["own"], done["kept"], done["init"], done["zeros"], done["size"]) == ("0", "0", "0", "0", "1000000")
    assert (done["named1"], done["namedzeros"]) == ("0", "0")
