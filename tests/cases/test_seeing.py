"""Public cases: what people see. tests/shell.py explains `timed` and `await`."""

from __future__ import annotations

import os


def test_o59_a_skipped_start_mails_nothing_and_an_error_does(sh):
    done = sh.run(
        """
        cronlock l2 -- sh -c 'touch $T/in; until [ -e $T/over ]; do sleep .1; done' & await test -e $T/in
        cronlock l2 -- true >$T/default 2>&1; echo rc=$?
        cronlock -q l2 -- true >$T/o 2>&1; echo quiet=$?
        echo bytes=$(cat $T/default $T/o | wc -c)
        cronlock -v l2 -- true 2>&1 | grep -c 'busy: held by' | sed s/^/seen=/
        cronlock -b redis://127.0.0.1:1 -q l2 -- true 2>&1 | wc -l | sed 's/ *//;s/^/lines=/'
        touch $T/over; wait
        """
    )
    assert (done["rc"], done["quiet"], done["bytes"]) == ("75", "75", "0")
    assert int(done["lines"]) >= 1
    assert done["seen"] == "1"


def test_o73_who_has_it_since_when_until_when(sh):
    done = sh.run(
        """
        cronlock -t 4 o1 -- sh -c 'touch $T/in; sleep 5' & w=$!
        await test -e $T/in
        cronlockctl status o1 >$T/status; echo held=$?
        cronlockctl status o1 --json >$T/json
        cronlock -v o1 -- true 2>$T/busy
        wait $w
        cronlockctl status o1 >/dev/null; echo free=$?
        echo holder=$(sed -n 's/^  holder *//p' $T/status), w=$w
        echo since=$(sed -n 's/^  since.*, for //p' $T/status)
        echo ttl=$(sed -n 's/^  ttl left *//p' $T/status)
        echo busy=$(cat $T/busy)
        cronlock -t 4 o1 -- sh -c 'touch $T/again; exec sleep 299' & w=$!
        await test -e $T/again
        kill -9 $w
        gone() { ! cronlockctl status o1 >$T/killed; }
        await gone
        echo after=$(head -1 $T/killed)
        """
    )
    host = os.uname().nodename
    assert (done["held"], done["free"]) == ("0", "3")
    holder, _, pid = done["holder"].rpartition(", w=")
    assert holder.startswith(f"{host}, pid {pid}, user ") and holder.endswith(", command sh")
    assert float(done["since"].removesuffix("s")) < 4
    assert (done["ttl"] == "") == sh.backend.startswith("flock")
    assert f"busy: held by {host}, pid {pid}, user " in done["busy"]
    assert done["after"] == "o1: free"
