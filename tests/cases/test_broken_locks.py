"""Public cases: flock(2) that fails, hangs or lies, by faults put into the system call. tests/shell.py explains `timed` and `await`."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from fixtures_nfs import unusable

SLACK = 2.0  # seconds that a busy machine may add to what a case allows
ERR = {"69", "77", "78"}  # the job was not run, and not because somebody else runs it

pytestmark = pytest.mark.parametrize("store", ["flock"])


@pytest.fixture
def inject():
    """inject(fault): what to put before a command whose flock(2) is to be so, also in its helpers."""
    if not shutil.which("strace"):
        unusable("needs Debian's package strace")
    probe = subprocess.run(["strace", "-f", "-o", "/dev/null", "true"], capture_output=True, text=True)
    if probe.returncode:
        unusable(f"strace does not work here: {probe.stderr.strip()[-300:]}")
    return lambda fault: f"strace -f -qq -o /dev/null -e trace=flock -e inject=flock:{fault}"


ERRORS = {"ENOSYS": "not implemented", "ENOLCK": "No locks available", "EIO": "Input/output error"}


@pytest.mark.parametrize("name", ["named", "$T/l"])
@pytest.mark.parametrize("error", ERRORS)
def test_o30_an_error_of_flock_is_not_busy(sh, inject, name, error):
    """It ends at once, also with --wait, with the path and the reason; no other kind of lock is tried instead."""
    done = sh.run(
        f"""
        timed rc {inject(f"error={error}")} cronlock --wait 30 {name} -- touch $T/ran
        ls $T
        """
    )
    assert done["rc"] in ERR
    assert done.took("rc") < 2 + SLACK  # under strace, too
    assert "ran" not in done.out.split()
    assert done.err.count("\n") == 1
    assert str(sh.T) in done.err
    assert ERRORS[error].lower() in done.err.lower()


@pytest.mark.parametrize("name", ["named", "$T/l"])
def test_o32_a_file_system_that_says_yes_to_everybody(sh, inject, name):
    """After the grant a second descriptor must be refused; where it is not, locks have no effect, and nothing runs."""
    done = sh.run(f"{inject('retval=0')} cronlock {name} -- touch $T/ran; echo rc=$?; ls $T")
    assert done["rc"] in ERR
    assert "ran" not in done.out.split()
    assert done.err.count("\n") == 1
    assert str(sh.T) in done.err
    assert "lock" in done.err


def test_o31_a_call_that_hangs_on_a_network_file_system(sh, inject, mirror):
    """It is left behind in a helper: an error with the path in time, and what was left holds nothing afterwards."""
    done = sh.run(
        f"""
        # strace stays as long as the helper; how cronlock ended is told by the shell in between
        {inject("delay_enter=5000000:when=1")} sh -c 'cronlock j -- touch $T/ran; echo $? >$T/rc.new; mv $T/rc.new $T/rc' & w=$!
        timed ended await test -e $T/rc
        echo rc=$(cat $T/rc)
        wait $w
        cronlock j -- true; echo next=$?
        ls $T
        """,
        CRONLOCK_BACKEND=f"nfs://{mirror.mount}/locks?timeout=2s",
    )
    assert done["rc"] in ERR
    assert done.took("ended") < 3 + SLACK
    assert "ran" not in done.out.split()
    assert done.err.count("\n") == 1
    assert str(mirror.mount) in done.err
    assert done["next"] == "0"


def test_o31_term_works_meanwhile(sh, inject, mirror):
    """Whoever waits for such a call can be stopped."""
    done = sh.run(
        f"""
        {inject("delay_enter=600000000")} sh -c 'cronlock j -- touch $T/ran & echo $! >$T/pid; wait $!; echo $? >$T/rc' &
        await test -s $T/pid
        await pgrep -x cronlock-nfs
        kill -TERM "$(cat $T/pid)"
        timed ended await test -s $T/rc
        echo rc=$(cat $T/rc)
        ls $T
        """,
        CRONLOCK_BACKEND=f"nfs://{mirror.mount}/locks?timeout=60s",
    )
    assert done["rc"] == "143"
    assert done.took("ended") < 6 + SLACK
    assert "ran" not in done.out.split()
