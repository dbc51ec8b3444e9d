"""Public cases: one at a time. tests/shell.py explains `timed` and `await`."""

from __future__ import annotations

from collections import Counter

import pytest

from shell import need_root

SLACK = 2.0  # seconds that a busy machine may add to what a case allows


def only(*stores):
    return pytest.mark.parametrize("store", stores)


def test_o01_only_a_grant_starts_the_job(sh):
    """Of five starts at once one runs; the four others are busy, and at once."""
    done = sh.run(
        """
        export job='echo run >>$T/hits; n=0; until [ $(grep -c =75 $T/ends) = 4 ] || [ $n = 200 ]; do n=$((n + 1)); sleep .05; done'
        : >$T/ends
        for i in 1 2 3 4 5; do timed rc cronlock a1 -- sh -c "$job" >>$T/ends & done; wait
        wc -l <$T/hits
        cat $T/ends
        """
    )
    lines = done.out.split()
    assert lines[0] == "1"
    assert Counter(line for line in lines if line.startswith("rc=")) == {"rc=0": 1, "rc=75": 4}
    assert max(sorted(int(line[6:]) for line in lines if line.startswith("rc.ms="))[:4]) < (1 + SLACK) * 1000
    assert done.err == ""


@only("flock")
def test_o02_the_lock_file_is_not_deleted(sh):
    """Waiters and newcomers never hold the old and a new file of one name at the same time."""
    done = sh.run(
        """
        export job='mkdir $T/in 2>/dev/null || echo OVERLAP >>$T/bad; sleep 0.02; rmdir $T/in; echo r >>$T/hits'
        for i in $(seq 10); do for k in 1 2 3 4; do cronlock --wait 30 a2 -- sh -c "$job" & done; wait; done
        [ ! -e $T/bad ]; echo bad=$?
        echo hits=$(wc -l <$T/hits)
        """
    )
    assert (done["bad"], done["hits"], done.err) == ("0", "40", "")


def test_o03_waiters_do_not_pile_up(sh, store):
    """Without --wait nobody waits, with it nobody longer than it says, and no process or second connection is left by them."""
    done = sh.run(
        """
        cronlock a3 -- sh -c 'touch $T/in; exec sleep 60' & w=$!
        await test -e $T/in
        for i in 1 2 3; do timed waited cronlock --wait 2 a3 -- true >$T/waited$i & list="$list $!"; done
        timed default cronlock a3 -- true
        [ -z "$COUNT" ] || { await pgrep -fc -- '--wait 2 a3'; sleep .5; echo connections=$(sql "$COUNT"); }
        wait $list
        cat $T/waited?
        echo left=$(pgrep -fc -- '--wait 2 a3')
        echo holder=$(pgrep -fc 'cronlock a3')  # the wrapper and its guard
        kill $w; wait
        """,
        COUNT="select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
        if store == "postgresql"
        else "",
    )
    assert done["default"] == "75"
    assert done.took("default") < 1 + SLACK
    lines = done.out.splitlines()
    assert lines.count("waited=75") == 3
    for line in lines:
        if line.startswith("waited.ms="):
            assert 2000 <= int(line[10:]) < (3 + SLACK) * 1000
    assert done["left"] == "0"
    assert int(done["holder"]) <= 2
    if store == "postgresql":
        assert int(done["connections"]) <= 4


def test_o04_different_names_nest(sh):
    """An inner lock of another name works, the status comes through, and both are free afterwards."""
    done = sh.run(
        """
        cronlock outer -- cronlock inner -- sh -c 'echo ok; exit 3'; echo rc=$?
        timed outer cronlock outer -- true
        timed inner cronlock inner -- true
        """
    )
    assert done.out.startswith("ok\n")
    assert (done["rc"], done["outer"], done["inner"], done.err) == ("3", "0", "0", "")


def test_o04_the_same_name_nested_is_refused(sh):
    """It ends busy at once, also with --wait, and names the own ancestor instead of waiting for itself."""
    done = sh.run("timed rc timeout 10 cronlock same -- cronlock --wait 30 same -- echo no")
    assert done["rc"] == "75"
    assert done.took("rc") < 5
    assert "no\n" not in done.out
    assert "ancestor" in done.err


@only("redis", "postgresql")
def test_o05_the_name_is_given_not_derived(sh):
    """Another interpreter's path changes nothing, and without a name nothing runs."""
    done = sh.run(
        """
        ln -s /bin/sh $T/sh-a; ln -s /bin/sh $T/sh-b
        cronlock rep -- $T/sh-a -c 'echo r >>$T/hits; n=0; until [ -e $T/over ] || [ $n = 200 ]; do n=$((n + 1)); sleep .05; done' &
        await test -e $T/hits
        cronlock rep -- $T/sh-b -c 'echo r >>$T/hits'; echo other=$?
        touch $T/over; wait
        echo hits=$(wc -l <$T/hits)
        cronlock -- true; echo nameless=$?
        """
    )
    assert (done["other"], done["hits"], done["nameless"]) == ("75", "1", "64")


@only("flock")
def test_o07_flock_on_the_same_path_excludes_and_is_excluded(sh):
    """Half of the crontabs may still use flock(1): it is the same lock, on exactly the path given."""
    done = sh.run(
        """
        flock -n $T/l sh -c 'touch $T/in; n=0; until [ -e $T/out ] || [ $n = 200 ]; do n=$((n + 1)); sleep .05; done' &
        await test -e $T/in
        cronlock $T/l -- true; echo a=$?
        touch $T/out; wait; rm $T/in $T/out
        cronlock $T/l -- sh -c 'touch $T/in; n=0; until [ -e $T/out ] || [ $n = 200 ]; do n=$((n + 1)); sleep .05; done' &
        await test -e $T/in
        flock -n $T/l true; echo b=$?
        grep ":$(stat -c %i $T/l) " /proc/locks
        touch $T/out; wait
        flock -n $T/l true; echo free=$?
        """
    )
    assert (done["a"], done["b"], done["free"]) == ("75", "1", "0")
    assert " FLOCK " in done.out


@pytest.mark.root
@only("flock")
def test_o72_a_file_lock_is_as_wide_as_its_file(sh):
    """Two containers with a /run/lock each both run it: unavoidable."""
    # that `cronlockctl check` and the docs name this trap waits for both
    need_root()
    done = sh.run(
        """
        for i in 1 2; do
            unshare -m sh -c 'mount -t tmpfs tmpfs /run/lock; cronlock /run/lock/n6 -- sh -c "echo r >>$T/hits; sleep 1"; echo rc=$?' &
        done; wait
        echo hits=$(wc -l <$T/hits)
        """
    )
    assert done["hits"] == "2"
    assert done.out.count("rc=0\n") == 2
