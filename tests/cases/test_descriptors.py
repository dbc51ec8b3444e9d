"""Public cases: daemons and descriptors. tests/shell.py explains `timed` and `await`."""

from __future__ import annotations

import pytest

SLACK = 2.0  # seconds that a busy machine may add to what a case allows


def only(*stores):
    return pytest.mark.parametrize("store", stores)


@only("flock")
def test_o26_a_daemon_does_not_inherit_the_lock(sh):
    """The lock is free when the job has ended, and a service it started has 0, 1, 2 and nothing of ours."""
    done = sh.run(
        """
        cronlock e1 -- sh -c 'setsid sleep 290.$M >/dev/null 2>&1 </dev/null & echo started'
        timed next cronlock e1 -- true
        echo open=$(ls /proc/$(pgrep -fx "sleep 290.$M")/fd)
        """
    )
    assert done.out.startswith("started\n")
    assert done["next"] == "0"
    assert done["open"] == "0 1 2"


@pytest.mark.parametrize("background", ["sleep 60.$M", "sleep 60.$M >/dev/null 2>&1"], ids=["keeps-stdout", "detached"])
def test_o27_done_is_the_exit_not_the_end_of_a_pipe(sh, background):
    """A background child that keeps stdout open holds up neither the wrapper nor the lock."""
    # output captured for a ping waits for --heartbeat
    done = sh.run(
        f"""
        timed rc cronlock e2 -- sh -c 'echo hi; {background} & exit 0' >$T/out; cat $T/out
        timed next cronlock e2 -- true
        """
    )
    assert "hi" in done.out.split()
    assert (done["rc"], done["next"]) == ("0", "0")
    assert done.took("rc") < 2 + SLACK


def test_o27_no_pipe_is_held_after_the_job(sh):
    """`cronlock … | cat` ends with the job, although that has left a daemon behind."""
    done = sh.run("""timed rc sh -c 'cronlock e3 -- sh -c "echo hi; sleep 60.$M >/dev/null 2>&1 &" | cat'""")
    assert done.out.startswith("hi\n")
    assert done["rc"] == "0"
    assert done.took("rc") < 2 + SLACK


@only("flock")
def test_o28_a_job_that_closes_all_descriptors_keeps_the_lock(sh):
    """The wrapper holds it, not the job."""
    job = "import os, time; os.closerange(3, 1024); open(os.environ['T'] + '/in', 'w'); time.sleep(60)"
    done = sh.run(
        """
        cronlock e4 -- python3 -c "$JOB" & w=$!
        await test -e $T/in
        cronlock e4 -- true; echo rc=$?
        kill $w; wait
        """,
        JOB=job,
    )
    assert done["rc"] == "75"
