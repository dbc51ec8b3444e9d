"""Public cases: what the shell and crontab(5) do to a line, and what we do not. tests/shell.py explains `timed` and `await`."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("line", ["cronlock j1 --", "cronlock j1"])
def test_o52_a_line_cut_by_a_percent_sign_is_a_usage_error(sh, line):
    """Half a line must not look like success, and locks nothing."""
    done = sh.run(f"{line}; echo rc=$?; timed next cronlock j1 -- true")
    assert (done["rc"], done["next"]) == ("64", "0")
    assert "COMMAND" in done.err


def test_o52_a_line_cut_inside_quotes_never_starts_us(sh):
    """The shell refuses it by itself: what is left of `-- sh -c 'date +%F'`."""
    done = sh.run("""sh -c "cronlock j1 -- sh -c 'date +"; echo rc=$?; timed next cronlock j1 -- true""")
    assert (done["rc"], done["next"]) == ("2", "0")


def test_o52_what_follows_a_percent_sign_is_the_jobs_stdin(sh):
    """cron gives it to the line, and the prefix leaves it to the job."""
    done = sh.run(r"printf 'line1\nline2\n' | cronlock j1 -- cat")
    assert (done.out, done.err) == ("line1\nline2\n", "")


WORDS = r"""'' ' a  b ' '$HOME' '`id`' '\%F' 'it'"'"'s' '"q"' '*' '--name' '-c' '--' $'two\nlines' $'\xff'"""


def test_o53_arguments_arrive_byte_for_byte(sh):
    """Nothing after NAME is interpreted, joined, expanded or reordered."""
    done = sh.run(
        f"""
        env printf '<%s>' {WORDS} >$T/without
        cronlock j2 -- printf '<%s>' {WORDS} >$T/with; echo rc=$?
        cmp $T/without $T/with; echo same=$?
        cronlock j2 printf '<%s>' {WORDS} | cmp $T/without -; echo bare=$?
        """,
        shell="bash",
    )
    assert (done["rc"], done["same"], done["bare"], done.err) == ("0", "0", "0", "")


def test_o53_a_command_that_looks_like_an_option(sh):
    """After `--` it is a program, and there is none of that name."""
    done = sh.run("cronlock j2 -- --version-like-name; echo rc=$?; cronlock j2 -- -c true; echo c=$?")
    assert (done["rc"], done["c"]) == ("127", "127")
    assert "--version-like-name" in done.err


def test_o54_what_runs_after_a_skip(sh):
    """`cronlock … && ping` pings only after a run; with -E 0 after a skip as well."""
    done = sh.run(
        """
        cronlock j3 -- sh -c 'touch $T/in; exec sleep 60' & w=$!
        await test -e $T/in
        cronlock j3 -- true && echo PING
        cronlock -E 0 j3 -- false && echo ok
        kill $w; wait
        cronlock j3 -- true && echo AFTER
        """
    )
    assert done.out == "ok\nAFTER\n"


def test_o54_a_string_is_under_the_lock_as_a_whole(sh):
    """-c 'a && b' holds the lock to the end of b."""
    done = sh.run(
        """
        cronlock j3 -c 'cd / && touch $T/in && n=0 && until [ -e $T/out ] || [ $n = 200 ]; do n=$((n + 1)); sleep .05; done && pwd >$T/d' &
        await test -e $T/in
        cronlock j3 -- true; echo rc=$?
        touch $T/out; wait; cat $T/d
        """
    )
    assert done["rc"] == "75"
    assert done.out.endswith("/\n")
