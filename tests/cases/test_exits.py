"""Public cases: statuses and calls that make no sense. tests/shell.py explains `timed` and `await`."""

from __future__ import annotations

import pytest

STATUSES = [0, 1, 2, 64, 75, 99, 100, 126, 127, 128, 137, 143, 199, 200, 201, 255]
SIGNALS = {"TERM": 143, "KILL": 137, "SEGV": 139, "PIPE": 141, "INT": 130}


def test_o55_the_jobs_status_is_passed_on(sh):
    """0 to 255, untouched and without a word."""
    done = sh.run(f'for i in {" ".join(map(str, STATUSES))}; do (cronlock k1-$i -- sh -c "exit $i"; echo $i=$?) & done; wait')
    assert {i: done[str(i)] for i in STATUSES} == {i: str(i) for i in STATUSES}
    assert done.err == ""


def test_o55_death_by_a_signal(sh):
    """128+N, and one line that names the signal."""
    done = sh.run(f"""for s in {" ".join(SIGNALS)}; do cronlock k1 -- sh -c "kill -$s \\$\\$"; echo $s=$?; done""")
    assert {s: done[s] for s in SIGNALS} == {s: str(code) for s, code in SIGNALS.items()}
    lines = done.err.splitlines()
    assert len(lines) == len(SIGNALS)
    assert all(f"SIG{name}" in line for name, line in zip(SIGNALS, lines, strict=True))


OUT_OF_RANGE = ["600", "256", "-1", "x", "", "1.5"]


def test_o56_a_skip_status_out_of_range(sh):
    """Is a usage error before anything runs."""
    done = sh.run("\n".join([*(f"cronlock -E '{value}' k2 -- touch $T/ran; echo '<{value}>='$?" for value in OUT_OF_RANGE), "ls $T"]))
    assert {value: done[f"<{value}>"] for value in OUT_OF_RANGE} == dict.fromkeys(OUT_OF_RANGE, "64")
    assert "ran" not in done.out.split()


def test_o56_the_largest_skip_status(sh):
    """255 is fine."""
    done = sh.run(
        """
        cronlock k2 -- sh -c 'cronlock -E 255 k2 -- true; echo busy=$?'
        cronlock -E 255 k2 -- true; echo ok=$?
        """
    )
    assert (done["busy"], done["ok"]) == ("255", "0")


def test_o57_busy_has_a_status_of_its_own(sh):
    """75, or what -E says; a backend that is away is something else, whatever -E says."""
    done = sh.run(
        """
        cronlock k3 -- sh -c 'touch $T/in; exec sleep 60' & w=$!
        await test -e $T/in
        cronlock k3 -- true; echo d=$?
        cronlock -E 0 k3 -- true; echo z=$?
        cronlock -E 75 k3 -- true; echo t=$?
        cronlock -b redis://127.0.0.1:1 -E 0 k3 -- true; echo err=$?
        kill $w; wait
        """
    )
    assert (done["d"], done["z"], done["t"], done["err"]) == ("75", "0", "75", "69")


NO_BACKEND = [
    "",
    "$UNSET_VAR",
    "redis:",
    "redis://",
    "rediss:",
    "reddis://h/0",
    "postgresql:",
    "postgresql://",
    "postgres:///",
    "://h",
    "h",
]


@pytest.mark.parametrize("store", ["redis"])  # the schemes are in the list
def test_o79_an_empty_or_unknown_backend(sh):
    """Nobody locks at home because a variable is missing: a usage error, by option and by environment."""
    lines = [
        f"""
        (cronlock -b "{url}" q3 -- touch $T/ran; echo '-b {url}='$?
        CRONLOCK_BACKEND="{url}" cronlock q3 -- touch $T/ran; echo 'CRONLOCK_BACKEND {url}='$?) &
        """
        for url in NO_BACKEND
    ]
    done = sh.run("\n".join([*lines, "wait; ls $T"]))
    for by in ("-b", "CRONLOCK_BACKEND"):
        assert {url: done[f"{by} {url}"] for url in NO_BACKEND} == dict.fromkeys(NO_BACKEND, "64")
    assert "ran" not in done.out.split()


# of the case's list, --renew and --ttl-max do not exist here: a third of the ttl, and no cap
NONSENSE = ["--ttl 0", "--ttl -5", "--ttl abc", "--ttl 10 --renew 10", "--min-hold -1", "--wait -1", "--max-runtime 0"]
NONSENSE += ["--max-runtime 99999999999999999999", "--ttl 1ms", "--wait ''", "--wait 5x", "--kill-after -3", "--wait 1e3"]


def test_o80_nonsense_durations(sh):
    """Are usage errors before anything runs."""
    done = sh.run("\n".join([*(f'(cronlock {o} q4 -- touch $T/ran; echo "{o}=$?") &' for o in NONSENSE), "wait; ls $T"]))
    assert {o: done[o] for o in NONSENSE} == dict.fromkeys(NONSENSE, "64")
    assert "ran" not in done.out.split()


def test_o80_units(sh):
    """30, 30s, 5m, 2h and 1.5s are understood."""
    lengths = ["30", "30s", "5m", "2h", "1.5s"]
    done = sh.run("\n".join(f"cronlock --wait {o} q4 -- true; echo {o}=$?" for o in lengths))
    assert {o: done[o] for o in lengths} == dict.fromkeys(lengths, "0")
    assert done.err == ""
