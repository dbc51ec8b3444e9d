"""Public cases: heartbeats. The monitor is a real HTTP server; tests/fixtures_monitor.py says how its paths answer."""

from __future__ import annotations

import re

import pytest

from shell import Shell

CHECK = "/ping/0c70cd54-1a3c-4fd5-8f0c-0123456789ab"  # a Healthchecks URL: it has a start, and statuses
SLACK = 3  # seconds that a busy machine may add


@pytest.mark.parametrize("store", ["flock"])  # no ping knows where the lock lives
def test_o61_a_monitor_that_is_down_changes_nothing(sh, monitor):
    """The job ran, its status stands, one line at most and none with -q; a URL that is none is said before anything runs."""
    done = sh.run(
        """
        n=0
        for u in http://127.0.0.1:1/x $H/502 $H/404 http://no-such.invalid/x $H/garbage; do
            for q in -v -q; do
                n=$((n + 1)); rm -f $T/ran
                timed rc$n cronlock $q --heartbeat-timeout 1.5 --heartbeat "$u" m1 -- sh -c 'touch $T/ran; exit 4' 2>$T/e
                echo ran$n=$(ls $T/ran) lines$n=$(grep -c heartbeat $T/e)
            done
        done
        rm -f $T/ran
        cronlock --heartbeat http://127.0.0.1:99999/x m1 -- touch $T/ran 2>$T/e; echo bad=$? "$(ls $T)"
        timed free cronlock m1 -- true
        """,
        H=monitor.url,
    )
    for n in range(1, 11):
        assert done[f"rc{n}"] == "4"
        assert done[f"ran{n}"] == f"{sh.T}/ran lines{n}={n % 2}", done
        assert done.took(f"rc{n}") < 2 + SLACK
    assert re.fullmatch(r"64 e( locks)?", done["bad"])
    assert done["free"] == "0"


def test_o62_a_slow_monitor_delays_neither_the_start_nor_the_next_run(sh, monitor):
    """One that accepts and never answers: the job starts at once, the lock is free at its end, cronlock ends within its limit."""
    done = sh.run(
        """
        echo asked=$(now)
        cronlock --heartbeat-timeout 4 --heartbeat $H/hang$CHECK m2 -- sh -c 'date +%s%N >$T/s; sleep 1; date +%s%N >$T/e' & w=$!
        await test -s $T/e; await cronlock m2 -- true
        kill -0 $w; echo free=$? at=$(now)
        wait $w; echo rc=$?; echo over=$(now); echo began=$(cat $T/s); echo ended=$(cat $T/e)
        """,
        H=monitor.url,
        CHECK=CHECK,
    )
    free, _, at = done["free"].partition(" at=")
    assert (free, done["rc"]) == ("0", "0")
    assert int(done["began"]) - int(done["asked"]) < (1 + SLACK) * 1e9
    assert int(at) - int(done["ended"]) < SLACK * 1e9
    assert int(done["over"]) - int(done["ended"]) < (4 + SLACK) * 1e9


def test_o63_start_then_success_or_failure_each_once_and_true(sh, monitor):
    """Success never before the sleep is over; 137 for the one that was killed."""
    done = sh.run(
        """
        for i in 0 3; do cronlock -q --heartbeat $H$CHECK m3 -- sh -c "sleep 1; date +%s.%N >$T/end$i; exit $i"; echo rc$i=$?; done
        cronlock -q --heartbeat $H$CHECK m3 -- sh -c 'kill -9 $$'; echo rc=$?
        echo end0=$(cat $T/end0); echo end3=$(cat $T/end3)
        """,
        H=monitor.url,
        CHECK=CHECK,
    )
    assert (done["rc0"], done["rc3"], done["rc"]) == ("0", "3", "137")
    assert [r.path.removeprefix(CHECK) for r in monitor.log] == ["/start", "", "/start", "/3", "/start", "/137"]
    assert float(done["end0"]) < monitor.log[1].at
    assert float(done["end3"]) < monitor.log[3].at
    assert [len({r.query["rid"] for r in monitor.log[i : i + 2]}) for i in (0, 2, 4)] == [1, 1, 1]


def test_o64_a_skipped_run_does_not_look_like_a_good_one(sh, monitor):
    """Who is busy sends no start and no success."""
    done = sh.run(
        """
        cronlock --heartbeat $H$CHECK m4 -- sh -c 'touch $T/up; until [ -e $T/go ]; do sleep .05; done' & w=$!
        await test -e $T/up
        for i in 1 2 3; do cronlock --heartbeat $H$CHECK m4 -- true; echo rc$i=$?; done
        touch $T/go; wait $w; echo rc=$?
        """,
        H=monitor.url,
        CHECK=CHECK,
    )
    assert [done[f"rc{i}"] for i in (1, 2, 3, "")] == ["75", "75", "75", "0"]
    assert monitor.lines == [f"GET {CHECK}/start", f"GET {CHECK}"]
    assert len({r.query["rid"] for r in monitor.log}) == 1


def test_o65_a_lost_ping_is_tried_again_but_sensibly(sh, monitor):
    """Until it is heard, with pauses; a permanent refusal is not repeated, and said."""
    done = sh.run(
        """
        cronlock --heartbeat $H/500/500/200 m5 -- true; echo flaky=$?
        cronlock --heartbeat $H/404$CHECK m5 -- true; echo gone=$?
        """,
        H=monitor.url,
        CHECK=CHECK,
    )
    assert (done["flaky"], done["gone"]) == ("0", "0")
    assert monitor.lines == ["GET /500/500/200"] * 3 + [f"GET /404{CHECK}/start", f"GET /404{CHECK}"]
    assert monitor.log[1].at - monitor.log[0].at > 0.2
    assert done.err.count("\n") == 1
    assert "404" in done.err


def test_o66_the_unhappy_ends_report_as_well(monitor):
    """The time limit and TERM: a failure with the reason, after the tree is gone. An unreachable store: nothing, since nobody ran."""
    with Shell() as sh:
        done = sh.run(
            """
            timed to cronlock -q --max-runtime 1 --heartbeat $H/to$CHECK m8 -- sleep 298.$M
            cronlock -q --heartbeat $H/term$CHECK m8 -- sleep 297.$M & w=$!
            await pgrep -fx "sleep 297.$M"
            kill -TERM $w; wait $w; echo term=$?
            echo left=$(pgrep -fc "sleep 29[78].$M")
            cronlock -q --backend 'redis://127.0.0.1:1?connect_timeout=1' --heartbeat $H/err$CHECK m8 -- true; echo err=$?
            """,
            H=monitor.url,
            CHECK=CHECK,
        )
    assert (done["to"], done["term"], done["left"], done["err"]) == ("124", "143", "0", "69")
    assert monitor.lines == [
        f"GET /to{CHECK}/start",
        f"POST /to{CHECK}/124 'cronlock: timed-out: stopped after --max-runtime 1s, status 124\\n'",
        f"GET /term{CHECK}/start",
        f"POST /term{CHECK}/143 'cronlock: killed by SIGTERM, status 143\\n'",
    ]
