"""Public cases: whatever ends a run ends all of it, in time. tests/shell.py explains `timed` and `await`."""

from __future__ import annotations

SLACK = 1.5  # seconds that a busy machine may add to what a case allows


def test_o19_term_stops_the_job(sh):
    """TERM to the wrapper ends the job, frees the lock, and shows in the status."""
    done = sh.run(
        """
        cronlock d1 -- sleep 298.$M & w=$!
        await pgrep -fx "sleep 298.$M"
        kill -TERM $w; timed rc wait $w
        echo left=$(pgrep -fxc "sleep 298.$M")
        timed next cronlock d1 -- true
        """
    )
    assert (done["rc"], done["left"], done["next"]) == ("143", "0", "0")
    assert done.took("rc") < 2 + SLACK


def test_o20_grandchildren_are_stopped_too(sh):
    """Everything that the job has started is gone, not only the direct child."""
    done = sh.run(
        """
        cronlock d2 -- sh -c 'sleep 297.$M & sh -c "sleep 296.$M & wait" & wait' & w=$!
        await pgrep -fx "sleep 297.$M"; await pgrep -fx "sleep 296.$M"
        kill -TERM $w; wait $w; echo rc=$?
        echo left=$(pgrep -fxc "sleep 29[67].$M")
        """
    )
    assert (done["rc"], done["left"]) == ("143", "0")


def test_o21_what_left_the_group_is_stopped_too(sh):
    """timeout(1) makes a process group of its own; it is found all the same, before the lock is released."""
    done = sh.run(
        """
        timed rc cronlock --max-runtime 1 --kill-after 1 d3 -- sh -c 'timeout 300 sleep 295.$M; echo never'
        echo left=$(pgrep -fxc "sleep 295.$M")
        """
    )
    assert (done["rc"], done["left"]) == ("124", "0")
    assert 1 <= done.took("rc") < 3 + SLACK
    assert "never" not in done.out


def test_o22_a_free_lock_means_that_the_job_is_gone(sh):
    """Also after kill -9 of the wrapper: the job's last sign of life is earlier than the next grant."""
    done = sh.run(
        """
        cronlock --ttl 3 --kill-after 1 d4 -- sh -c 'while :; do date +%s%N >>$T/beat; sleep .05; done' & w=$!
        await test -s $T/beat
        kill -9 $w
        await cronlock d4 -- sh -c 'date +%s%N >$T/got'
        sleep .5
        echo beat=$(tail -n 1 $T/beat); echo got=$(cat $T/got)
        """
    )
    assert int(done["beat"]) < int(done["got"])


def test_o23_the_time_limit_ends_what_ignores_term(sh):
    """TERM to the tree, KILL after the grace, a status and a line of its own, and the lock is free."""
    done = sh.run(
        """
        timed rc cronlock --max-runtime 1 --kill-after 1 d5 -- sh -c 'trap "" TERM; while :; do sleep 1; done'
        cronlock d5 -- true; echo next=$?
        """
    )
    assert (done["rc"], done["next"]) == ("124", "0")
    assert 2 <= done.took("rc") < 3 + SLACK
    assert "max-runtime" in done.err
    assert "KILL" in done.err


def test_o23_the_time_limit_lets_the_job_clean_up(sh):
    """A job that ends at TERM is not killed, and the status is that of the limit all the same."""
    done = sh.run(
        """
        timed rc cronlock --max-runtime 1 --kill-after 8 d5 -- sh -c 'trap "echo bye; exit 0" TERM; while :; do sleep .2; done'
        cronlock d5 -- true; echo next=$?
        """
    )
    assert done.out.startswith("bye\n")
    assert (done["rc"], done["next"]) == ("124", "0")
    assert 1 <= done.took("rc") < 2 + SLACK
    assert "max-runtime 1s; it ended with 0\n" in done.err


def test_o24_a_job_that_ignores_term_still_ends(sh):
    """After the grace comes KILL; the status is how it ended."""
    done = sh.run(
        """
        cronlock --kill-after 1 d6 -- sh -c 'trap "" TERM INT; touch $T/in; while :; do sleep 1; done' & w=$!
        await test -e $T/in
        kill -TERM $w; timed rc wait $w
        cronlock d6 -- true; echo next=$?
        """
    )
    assert (done["rc"], done["next"]) == ("137", "0")
    assert 1 <= done.took("rc") < 2 + SLACK


def test_o24_a_second_term_shortens_the_grace(sh):
    """Who asks twice does not wait for the whole of it."""
    done = sh.run(
        """
        cronlock --kill-after 50 d6 -- sh -c 'trap "echo t >>$T/terms" TERM; touch $T/in; while :; do sleep .1; done' & w=$!
        await test -e $T/in
        kill -TERM $w; await test -e $T/terms
        kill -TERM $w; timed rc wait $w
        """
    )
    assert done["rc"] == "137"
    assert done.took("rc") < 10


JOB = """
trap "echo hup >>$T/sig" HUP
trap "echo usr1 >>$T/sig" USR1
trap "echo int >>$T/sig; left=6" INT
touch $T/in
left=-1
while [ $left -ne 0 ]; do sleep .1; left=$((left - 1)); done  # long enough for a second one to be seen
exit 5
"""


def test_o25_signals_come_once_and_as_themselves(sh):
    """HUP, USR1 and INT reach the job unchanged, and the wrapper does not die of what the job survives."""
    (sh.T / "job").write_text(JOB)
    done = sh.run(
        """
        set -m  # job control, so that INT is not ignored in the background
        cronlock d9 -- sh $T/job & w=$!
        await test -e $T/in
        kill -HUP $w; await grep hup $T/sig
        kill -USR1 $w; await grep usr1 $T/sig
        kill -INT -- -$(ps -o pgid= $w | tr -d ' '); wait $w; echo rc=$?
        cat $T/sig
        """,
        shell="bash",
    )
    assert done["rc"] == "5"
    assert sorted(line for line in done.out.split() if "=" not in line) == ["hup", "int", "usr1"]


def test_o25_ctrl_c_at_a_terminal_comes_once(sh):
    """The terminal gives INT to the job as well as to the wrapper, which must not add its own."""
    (sh.T / "job").write_text(JOB)
    done = sh.run(
        """
        { await test -e $T/in; printf '\\003'; await test -e $T/status; } |
            script -qec 'trap : INT; cronlock d9 -- sh $T/job; echo status $? >$T/status' /dev/null >/dev/null
        cat $T/status $T/sig
        """
    )
    assert done.out.split() == ["status", "5", "int"]
