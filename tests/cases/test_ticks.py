"""Public cases: one tick, several starts. Only a memory of the tick helps, since the lock is free again."""

from __future__ import annotations

import re
import shutil
from datetime import datetime

import pytest


def test_o06_cron_itself_starts_the_line_twice(sh):
    """Of two starts in the same second exactly one runs, also when the job is instant."""
    done = sh.run(
        """
        for i in 1 2 3 4 5 6; do
            for k in 1 2; do cronlock --min-hold 30 a6-$i -- sh -c "echo r >>$T/hits-$i" & done
        done
        wait
        cat $T/hits-* | wc -l | sed 's/ *//;s/^/runs=/'; ls $T/hits-* | wc -l | sed 's/ *//;s/^/names=/'
        """
    )
    assert (done["runs"], done["names"]) == ("6", "6")


def test_o06_and_a_period_absorbs_it_too(sh):
    done = sh.run(
        "for k in 1 2 3 4; do cronlock --once-per 1d a6 -- sh -c 'echo r >>$T/hits' & done; wait; wc -l <$T/hits | sed 's/ *//;s/^/runs=/'"
    )
    assert done["runs"] == "1"


def test_o08_a_one_second_job_on_every_host_in_turn(sh):
    """The lock stays taken until the start + N seconds even if the job ends sooner."""
    done = sh.run(
        """
        j='date +%s >>$T/hits'
        cronlock --min-hold 6 b1 -- sh -c "$j"; sleep 1
        cronlock --min-hold 6 b1 -- sh -c "$j"; echo second=$?
        await cronlock --min-hold 6 b1 -- sh -c "$j"; echo third=$?
        wc -l <$T/hits | sed 's/ *//;s/^/hits=/'
        """
    )
    assert (done["second"], done["third"], done["hits"]) == ("75", "0", "2")


def test_o09_counted_from_the_start(sh):
    """A job longer than its min-hold frees at once; a shorter one frees min-hold after its start, not after its end."""
    done = sh.run(
        """
        cronlock --min-hold 1 b2 -- sleep 2; cronlock b2 -- true; echo long=$?
        cronlock --min-hold 6 b3 -- sleep 3; cronlock b3 -- true; echo soon=$?
        timed free await cronlock b3 -- true; echo short=$?
        """
    )
    assert (done["long"], done["soon"], done["short"]) == ("0", "75", "0")
    assert done.took("free") < 5  # after the end it would have been 6 s


def test_o10_the_hold_delays_nothing(sh):
    """The status comes at once, and a period slightly above the hold always runs."""
    done = sh.run("timed rc cronlock --min-hold 20 b5 -- sh -c 'exit 4'")
    assert done["rc"] == "4"
    assert done.took("rc") < 5
    done = sh.run(
        "for i in 1 2 3; do cronlock --min-hold 1 b6 -- sh -c 'echo r >>$T/hits'; sleep 1.3; done; wc -l <$T/hits | sed 's/ *//;s/^/hits=/'"
    )
    assert done["hits"] == "3"


@pytest.mark.skipif(not shutil.which("faketime"), reason="needs faketime")
def test_o76_the_repeated_hour(sh):
    """Half past two comes twice in Copenhagen on that night: an hour's hold is longer than the step back, and the day is one period."""
    done = sh.run(
        """
        mount -t tmpfs none /dev/shm 2>/dev/null # faketime's semaphore is named by pid, and pids are small in here
        clean() { rm -f /dev/shm/*faketime*; }
        first='env TZ=Europe/Copenhagen faketime @1761438600' # 02:30 +0200
        again='env TZ=Europe/Copenhagen faketime @1761442200' # 02:30 +0100
        $first cronlock --min-hold 2h p1 -- sh -c 'echo r >>$T/hits'
        clean; $again cronlock --min-hold 2h p1 -- sh -c 'echo r >>$T/hits'; echo second=$?
        clean; $first cronlock --once-per 1d p2 -- sh -c 'echo r >>$T/days'
        clean; $again cronlock --once-per 1d p2 -- sh -c 'echo r >>$T/days'; echo third=$?
        wc -l <$T/hits | sed 's/ *//;s/^/hits=/'; wc -l <$T/days | sed 's/ *//;s/^/days=/'
        TZ=Pacific/Auckland cronlockctl history p1; TZ=UTC cronlockctl history p1
        """
    )
    assert (done["second"], done["hits"], done["third"], done["days"]) == ("75", "1", "75", "1")
    zones = re.findall(r"STARTED ([+-]\d{4})", done.out)
    times = re.findall(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", done.out, re.MULTILINE)
    assert (len(zones), len(times), len(set(times))) == (2, 2, 2)
    assert len({datetime.strptime(t + z, "%Y-%m-%d %H:%M:%S%z") for t, z in zip(times, zones, strict=True)}) == 1
