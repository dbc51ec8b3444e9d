"""Public cases: streams. tests/shell.py explains `timed` and `await`."""

from __future__ import annotations


def test_o58_silent_on_success(sh):
    """Not one byte of our own, or cron mails every minute."""
    done = sh.run("cronlock l1 -- true")
    assert (done.status, done.out, done.err) == (0, "", "")


def test_o58_streams_stay_apart_and_in_time(sh):
    """Both are there while the job runs, each where it belongs."""
    done = sh.run(
        """
        export wait='n=0; until [ -e $T/go ] || [ $n = 200 ]; do n=$((n + 1)); sleep .05; done'
        cronlock l1 -- sh -c 'echo o1; echo e1 >&2; eval "$wait"; echo o2' >$T/o 2>$T/e &
        await test -s $T/e
        echo early=$(cat $T/o),$(cat $T/e)
        touch $T/go; wait
        echo out=$(cat $T/o) err=$(cat $T/e)
        """
    )
    assert done["early"] == "o1,e1"
    assert done["out"] == "o1 o2 err=e1"


def test_o60_large_output(sh, monitor):
    """Passes at the speed of the pipe and through no memory of ours; a monitor gets the end of it, no more."""
    done = sh.run(
        """
        export job='head -c 150000000 /dev/zero | tr "\\0" x; echo; echo LAST'
        timed without sh -c 'sh -c "$job" | tail -c 5'
        timed with sh -c 'peak $T/kB cronlock l3 -- sh -c "$job" | tail -c 5'
        export CRONLOCK_HEARTBEAT=$H/ping/0c70cd54-1a3c-4fd5-8f0c-0123456789ab
        timed told sh -c 'peak $T/kB2 cronlock --heartbeat-output 1k l3 -- sh -c "$job" | tail -c 5'
        echo kB=$(cat $T/kB); echo kB2=$(cat $T/kB2)
        """,
        H=monitor.url,
    )
    assert done.out.split("\n").count("LAST") == 3
    assert max(int(done["kB"]), int(done["kB2"])) < 64_000
    assert max(done.took("with"), done.took("told")) < 2 * done.took("without") + 2
    assert monitor.log[-1].body == b"x" * 1018 + b"\nLAST\n"
