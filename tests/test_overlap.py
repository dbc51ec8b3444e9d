"""The judge of the acceptance tests must itself be seen to see."""

import math
import os
import subprocess
import sys

import pytest

import overlap
from hosts import until

CLEAN = """\
start 100 a h1 7 1001
end 200 a h1 7 1001
start 200 b h2 8 1002
end 300 b h2 8 1002
"""


def read(text):
    return overlap.read(text.splitlines(keepends=True))


def test_clean_record():
    runs = read(CLEAN)
    assert [run.id for run in runs] == ["a", "b"]
    assert overlap.overlaps(runs) == []  # to start in the nanosecond the other ended in is no overlap
    assert overlap.doubles(runs) == {}
    assert overlap.unfinished(runs) == []
    assert overlap.backward_fences(runs) == []
    assert overlap.missed(runs, ["7", "8", "9"]) == ["9"]


def test_overlap_by_one_nanosecond():
    runs = read(CLEAN.replace("start 200", "start 199"))
    assert [(one.id, other.id) for one, other in overlap.overlaps(runs)] == [("a", "b")]


def test_overlap_with_a_run_that_is_no_neighbour():
    runs = read("start 1 a h1 7 -\nstart 2 b h2 7 -\nend 3 b h2 7 -\nstart 4 c h3 7 -\nend 5 c h3 7 -\nend 6 a h1 7 -\n")
    assert [(one.id, other.id) for one, other in overlap.overlaps(runs)] == [("a", "b"), ("a", "c")]


def test_overlap_whatever_order_the_lines_have():
    lines = ["start 150 b h2 8 -", "start 100 a h1 7 -", "end 300 b h2 8 -", "end 200 a h1 7 -"]
    assert len(overlap.overlaps(overlap.read(lines))) == 1


def test_two_runs_in_one_tick_are_a_double_though_they_do_not_overlap():
    runs = read(CLEAN.replace(" 8 ", " 7 "))
    assert overlap.overlaps(runs) == []
    assert [run.host for run in overlap.doubles(runs)["7"]] == ["h1", "h2"]


def test_missing_end():
    runs = read(CLEAN.replace("end 200 a h1 7 1001\n", ""))
    assert [run.id for run in overlap.unfinished(runs)] == ["a"]
    assert runs[0].end == math.inf
    assert len(overlap.overlaps(runs)) == 1  # for all we know it is still going


def test_a_dead_host_ends_its_runs_and_only_its():
    runs = overlap.cut_short(read("start 100 a h1 7 -\nstart 200 b h2 8 -\n"), "h1", at=150)
    assert [run.end for run in runs] == [150, math.inf]
    assert overlap.overlaps(runs) == []
    assert overlap.overlaps(overlap.cut_short(runs[:1], "h1", at=250) + runs[1:]) == []  # it died once


def test_fence_that_stands_still():
    runs = read(CLEAN.replace("1002", "1001"))
    assert [(one.id, other.id) for one, other in overlap.backward_fences(runs)] == [("a", "b")]


@pytest.mark.parametrize(
    "wrong",
    [
        "end 1 a h1 7 -\n",
        CLEAN + "start 9 a h1 7 1001\n",
        CLEAN + "end 900 a h1 7 1001\n",
        CLEAN + "start 4",
        "start x a h1 7 -\n",
        "go 1 a h1 7 -\n",
        "\n",
    ],
)
def test_nonsense_is_an_error(wrong):
    with pytest.raises(ValueError, match="line"):
        read(wrong)


def run(*arguments, **environment):
    return subprocess.run([sys.executable, overlap.__file__, *arguments], env=os.environ | environment, capture_output=True, text=True)


def test_command_line(tmp_path):
    file = tmp_path / "runs"
    for tick in "12":
        run("record", file, "0.01", "0.02", CRONLOCK_RUN_ID=f"run{tick}", CRONLOCK_RUN_FENCE=tick, TICK=tick)
    assert run("check", file).returncode == 0
    with file.open("a") as more:
        more.write("start 1 x h9 1 3\n")
    checked = run("check", file)
    assert checked.returncode == 1
    assert {line.split(":")[0] for line in checked.stdout.splitlines()} == {"overlap", "double", "no end", "fence"}


def test_a_job_that_is_stopped_has_an_end(tmp_path):
    file = tmp_path / "runs"
    file.touch()
    job = subprocess.Popen([sys.executable, overlap.__file__, "record", file, "60", "60"])
    until(file.read_text, 10, "the job has started")
    job.terminate()
    assert job.wait(10) == 143
    assert overlap.unfinished(read(file.read_text())) == []
