"""status, history, metrics, key: on every backend, while the holder is frozen, and without disturbing it."""

from __future__ import annotations

import json
import os
import pty
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from cronlock import clock
from cronlock.ctl import history, metrics, status, table
from cronlock.ctl.status import Facts
from cronlock.model import Run, Status
from cronlock.usual import Usual, doubles, usual
from fixtures_store import until
from pages import ROOT
from shell import Shell, need_root

HERE = os.uname().nodename
CRONLOCKCTL = str(Path(sys.executable).with_name("cronlockctl"))


@pytest.fixture
def shell():
    """shell(line, store): the line, run by a shell that finds cronlockctl."""

    def run(line, store):
        env = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
        env |= {"CRONLOCK_BACKEND": store, "PATH": f"{Path(CRONLOCKCTL).parent}:{os.environ['PATH']}"}
        return subprocess.run(["sh", "-c", line], env=env, capture_output=True, text=True, timeout=60)

    return run


def run(**kw):
    return Run(**{"run_id": "r", "token": "t", "host": "web1", "pid": 1, "user": "u", "command": "c", "start": 1000.0, **kw})


def test_everything_can_be_seen_while_the_holder_is_frozen(ctl, past, holder, store, tmp_path):
    for i in range(5):
        past("job", took=60, ago=600 - 70 * i)
    process = holder("job")
    os.kill(process.pid, signal.SIGSTOP)
    page = ctl("status", "job", backend=store)
    table = ctl("status", backend=store)
    runs = ctl("history", "job", backend=store)
    numbers = ctl("metrics", backend=store)
    key = ctl("key", "job", backend=store)
    checked = ctl("check", backend=store)
    os.kill(process.pid, signal.SIGCONT)
    (tmp_path / "go").touch()
    assert process.end() == (0, "", "")  # nobody took or disturbed it
    assert ctl("history", "job", "--json", backend=store).out.count('"outcome": "ok"') == 6

    assert (page.status, table.status, runs.status, numbers.status, key.status) == (0, 0, 0, 0, 0)
    assert page.out.startswith("job: held\n")
    assert f"  holder    {HERE}, pid {process.pid}, user " in page.out and ", command sh\n" in page.out
    assert "  usual     median 1m, p95 1m of 5 runs\n" in page.out
    assert ("ttl left" in page.out) == (not store.startswith("flock"))
    assert re.search(rf"^job +held +{HERE}:{process.pid} .* 1m/1m .* ok$", table.out, re.M)
    assert runs.out.count("\n") == 6 and "  1m  " in runs.out
    assert f'cronlock_held{{name="job",host="{HERE}"}} 1.0' in numbers.out
    assert "reachable" in checked.out and "✗" not in checked.out, checked.out


def test_free_and_held_are_told_by_status(ctl, past, holder, store, tmp_path):
    assert ctl("status", "job", backend=store)[:2] == (3, "job: free\n  last run  none is known\n")
    process = holder("job")
    assert ctl("status", "job", backend=store).status == 0
    (tmp_path / "go").touch()
    process.end()
    assert ctl("status", "job", backend=store).status == 3


def test_waiting_is_no_part_of_a_run(ctl, holder, start, store, tmp_path):
    """Or a queue of waiters looks overdue, and what is usual grows with it."""
    process, began = holder("job"), time.time()
    waiter = start("--wait", "60s", "job", "sh", "-c", 'touch "$T/second"; until [ -e "$T/out" ]; do sleep 0.05; done', backend=store)
    until(lambda: time.time() > began + 2)
    let_go = time.time()
    (tmp_path / "go").touch()
    assert process.end()[0] == 0
    until((tmp_path / "second").exists)
    (lock,) = json.loads(ctl("status", "job", "--json", backend=store).out)["locks"]
    assert lock["holder"]["start"] > let_go - 0.5 and lock["held_for"] < time.time() - let_go + 0.5
    (tmp_path / "out").touch()
    assert waiter.end()[0] == 0
    last = json.loads(ctl("history", "job", "--json", backend=store).out)["runs"][-1]
    assert last["start"] > let_go - 0.5 and last["duration"] < time.time() - let_go + 0.5


def test_json_has_what_the_page_says(ctl, past, holder, store, tmp_path):
    past("job")
    process = holder("job")
    told = json.loads(ctl("status", "--json", backend=store).out)
    (tmp_path / "go").touch()
    process.end()
    runs = json.loads(ctl("history", "job", "--json", backend=store).out)
    page = (ROOT / "docs/cronlockctl.md").read_text()
    (lock,) = told["locks"]
    for known in (told, lock, lock["holder"], lock["usual"], runs, runs["runs"][0]):
        for key in known:
            assert f"`{key}`" in page, key
    assert (lock["name"], lock["state"], lock["holder"]["pid"], lock["overdue"]) == ("job", "held", process.pid, False)
    assert lock["last"]["outcome"] == "ok" and abs(lock["last"]["duration"] - 1) < 0.01
    assert "token" not in json.dumps([told, runs])
    assert (lock["ttl_left"] is None) == store.startswith("flock")


def test_max_age_as_monitoring_plugins_have_it(ctl, past, store):
    ask = lambda *argv: ctl("status", "job", "--max-age", *argv, backend=store)  # noqa: E731
    assert ask("1h")[:2] == (2, "CRITICAL: job: no success is known\n")
    past("job", ago=7200, took=60)
    assert ask("26h")[:2] == (0, "OK: job: last success 1h59m ago on web1\n")
    assert ask("1h")[:2] == (2, "CRITICAL: job: last success 1h59m ago on web1, more than 1h\n")
    past("job", ago=60, outcome="failed", host="web2")
    assert ask("26h")[:2] == (1, "WARNING: job: last success 1h59m ago on web1; the last run was failed (1) on web2\n")
    assert ask("tomorrow").status == 64


def test_max_age_of_a_store_that_is_away_is_unknown(ctl):
    answer = ctl("status", "job", "--max-age", "1h", backend="redis://127.0.0.1:1")
    assert answer.status == 3 and answer.out.startswith("UNKNOWN: redis://127.0.0.1:1")


def test_max_age_with_a_wrong_config_is_unknown(ctl, tmp_path):
    (tmp_path / "wrong.toml").write_text("ttl = 1\n")
    for where in (("--config", f"{tmp_path}/wrong.toml"), ("--config", "/nosuch"), ("-b", "nosuch")):
        answer = ctl(*where, "status", "job", "--max-age", "1h")
        assert answer.status == 3 and answer.out.startswith("UNKNOWN: ") and not answer.err, answer


def test_a_directory_that_is_somebody_elses():
    """A monitor's user, and root's locks."""
    need_root()
    with Shell() as sh:
        sh.run("cronlock job true; chmod 700 $T/locks")
        verbs = ("status", "status job", "history job", "metrics", "status --max-age 1h", "status job --max-age 1h")
        done = sh.run("\n".join(f"cronlockctl {verb}; echo '{verb}='$?" for verb in verbs), nobody=True)
    assert [done[verb] for verb in verbs] == ["77"] * 4 + ["3"] * 2
    assert done.out.count("UNKNOWN: ") == 2 and done.err.count("permission denied for uid 65534") == 4, done


def test_what_is_overdue_stands_out(store, past):
    for _ in range(5):
        past("job", took=10)
    known = usual([run(outcome="ok", end=1010.0)] * 5)
    going = Status("job", True, run(start=0.0, host=os.uname().nodename))
    elsewhere = Status("job", True, run(start=0.0, host="web1"))  # whose clock may be a minute apart
    assert not status.facts(elsewhere, tuple([run(outcome="ok", end=1010.0)] * 5), 89.0).overdue
    assert status.facts(elsewhere, tuple([run(outcome="ok", end=1010.0)] * 5), 91.0).overdue
    assert status.facts(going, tuple([run(outcome="ok", end=1010.0)] * 5), 31.0).overdue
    assert not status.facts(going, tuple([run(outcome="ok", end=1010.0)] * 5), 29.0).overdue
    assert not status.facts(going, tuple([run(outcome="ok", end=1010.0)] * 4), 1e6).overdue  # too little is known
    assert known == Usual(10.0, 10.0, 5)


def test_usual_is_of_the_runs_that_went_well():
    fast = [run(outcome="failed", end=1000.1)] * 50
    slow = [run(outcome="ok", end=1000.0 + n) for n in range(1, 21)]
    assert usual(fast + slow) == Usual(10.5, 19.0, 20)
    assert usual(fast).runs == 50
    assert usual([run(outcome="vanished")]) is None


def test_doubles_are_two_hosts_in_one_minute():
    a, b = run(run_id="a", start=120.0, host="web1"), run(run_id="b", start=179.0, host="web2")
    c, d = run(run_id="c", start=180.0, host="web2"), run(run_id="d", start=181.0, host="web2")
    assert doubles([a, b, c, d]) == {"a", "b"}
    assert doubles([a.but(label="1h/x"), b.but(label="1h/x")]) == set()


def test_history_draws_bars_and_names_the_remedy(ctl, past, store):
    now = time.time()
    ago = now - now // 60 * 60 + 60  # the last full minute began then
    past("job", took=8, ago=ago - 1, host="web1")
    past("job", took=4, ago=ago - 20, host="web2")
    past("job", took=1, ago=ago + 200, host="web3", outcome="failed")
    lines = ctl("history", "job", backend=store).out.splitlines()
    assert lines[0].startswith("STARTED ")
    assert lines[1].endswith("  web1  4711  ok          8s    x2  ██████████")
    assert lines[2].endswith("  web2  4711  ok          4s    x2  █████")
    assert lines[3].endswith("  web3  4711  failed (1)  1s        █▎")
    assert "--once-per" in "".join(lines[4:])
    plain = ctl("history", "job", backend=store, env={"PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}).out
    assert "  ##########\n" in plain


def test_eighty_columns_and_no_escapes():
    long = run(host="a-host-with-a-very-long-name.example.org", pid=4194304, outcome="timed-out", status=124, end=400000.0)
    one = Facts("x" * 200, "held", 5e6, long.but(outcome="", end=None), 3600.0, None, Usual(5e5, 6e5, 9), True, (long,), "detail " * 30)
    nasty = one.but(name="red\x1b[31m\n")
    for text in (status.table([one, nasty]), status.page(one), history.table([long, long.but(run_id="2", host="b", status=None)])):
        assert max(map(len, text.splitlines())) <= 80, text
        assert "\x1b" not in text
    cloud = one.but(state="free", holder=None, history=(long.but(host="ip-10-0-123-234.eu-central-1.compute.internal"),))
    assert f"  last run  timed-out (124), {clock.stamp(long.start)}, took 4d14h" in status.page(cloud)  # what is cut off is the host


def test_columns_line_up_whatever_a_name_is_written_in():
    job = Facts("job", "free", 5e6, None, None, None, None, False, (run(outcome="ok", end=1001.0),))
    names = ("job", "日本語のジョブ" * 20, "🎉 party", "e\u0301te\u0301")
    lines = status.table([job.but(name=name) for name in names]).splitlines()
    assert [table.wide(line[: line.index("  free")]) for line in lines[1:]] == [table.wide(lines[0][: lines[0].index("  STATE")])] * 4
    assert table.wide("日本e\u0301") == 5 and max(map(table.wide, lines)) <= 80
    assert table.wide(status.page(job.but(name=names[1])).splitlines()[0]) <= 80


def test_who_took_it_away_is_not_its_holder():
    by = run(outcome="released", end=1000.0)
    lines = status.table([Facts("job", "released", 1005.0, by, 9.0, None, None, False, ())]).splitlines()
    assert lines[1].split() == ["job", "released", "9s"]


def test_kept_until():
    one = Facts("job", "kept", 5.0, None, 5.0, 10.0, None, False, ())
    assert "\n  kept      until 1970-01-01 00:00:10+0000 (--min-hold)\n" in status.page(one)


def test_names_that_nobody_can_decode_stay_apart_in_the_metrics():
    free = Facts("", "free", 5.0, None, None, None, None, False, ())
    lines = metrics.text([free.but(name=name) for name in ("\udcfe", "\udcff")]).splitlines()
    assert [line for line in lines if line.startswith("cronlock_held{")] == [
        r'cronlock_held{name="\\udcfe",host=""} 0.0',
        r'cronlock_held{name="\\udcff",host=""} 0.0',
    ]


@pytest.mark.parametrize(
    ("env", "painted"), [({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_colour_on_a_terminal_unless_told_not_to(env, painted, tmp_path, monkeypatch):
    end, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr("sys.stdout", terminal)
        for key in ("NO_COLOR", "TERM"):
            monkeypatch.delenv(key, raising=False)
        for key, value in env.items():
            monkeypatch.setenv(key, value)
        text = history.table([run(outcome="failed", status=1, end=1001.0)])
    os.close(end)
    assert ("\x1b[31mfailed (1)" in text) == painted


def test_metrics_are_what_prometheus_reads(ctl, past, holder, store, tmp_path):
    parser = pytest.importorskip("prometheus_client.parser")
    past('a "b" \\ c', took=2, outcome="failed", host="web2")
    good = past("job", took=3, host="web1")
    process = holder("job")
    text = ctl("metrics", backend=store).out
    (tmp_path / "go").touch()
    process.end()
    families = {family.name: family for family in parser.text_string_to_metric_families(text)}
    assert families.keys() == metrics.METRICS.keys()
    values = {(s.name, *s.labels.values()): s.value for family in families.values() for s in family.samples}
    assert values["cronlock_held", "job", HERE] == 1 and values["cronlock_held", 'a "b" \\ c', ""] == 0
    assert abs(values["cronlock_last_success_timestamp_seconds", "job", "web1"] - good.end) < 0.001
    assert abs(values["cronlock_last_duration_seconds", "job", "web1"] - 3) < 0.001
    assert values["cronlock_history_runs", 'a "b" \\ c', "web2", "failed"] == 1
    assert abs(values["cronlock_last_start_timestamp_seconds", "job", HERE] - time.time()) < 60
    assert (("cronlock_ttl_left_seconds", "job", HERE) in values) == (not store.startswith("flock"))
    for metric in families:
        assert f"`{metric}`" in (ROOT / "docs/monitoring.md").read_text()


def test_an_empty_store(ctl, store):
    assert ctl("status", backend=store)[:2] == (0, "no lock has been used here yet\n")
    assert ctl("history", "job", backend=store)[:2] == (0, "no run has been recorded here yet\n")
    assert ctl("metrics", backend=store).status == 0


@pytest.mark.parametrize("store", ["flock"], indirect=True)
def test_a_full_disk_is_no_success_and_no_output_no_defect(past, store, shell):
    """As in `cronlockctl metrics > file && mv file …`: the old file must stay."""
    past("job")
    for verb in ("status", "status job", "status --json", "history job", "key job", "metrics", "check"):
        full = shell(f"cronlockctl {verb} >/dev/full", store)
        assert (full.returncode, full.stderr) == (69, "cronlockctl: can't write the answer: No space left on device\n"), verb
        closed = shell(f"cronlockctl {verb} >&-", store)
        # check warns of a host's own: a /tmp that a reboot empties
        assert closed.returncode in {"status job": (3,), "check": (0, 1)}.get(verb, (0,)) and closed.stderr == "", verb
    assert shell("cronlockctl metrics | true", store).stderr == ""


@pytest.mark.parametrize("store", ["flock"], indirect=True)
def test_letters_that_the_terminal_has_not(ctl, past, store):
    past("ü日本")
    env = {"PYTHONUTF8": "0", "PYTHONIOENCODING": "latin-1:strict"}
    done = subprocess.run([CRONLOCKCTL, "status"], env=os.environ | env | {"CRONLOCK_BACKEND": store}, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"") and b"\xfc\\u65e5\\u672c" in done.stdout


def test_less_than_two_lock_attempts(ctl, finish, store):
    """In processor time, for this machine may be busy with something else."""
    verbs = ("status", "history job", "key job", "metrics", "check")
    least = dict.fromkeys(("", *verbs), 1e9)
    for _ in range(4):  # by turns
        for verb in least:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            ctl(*verb.split(), backend=store) if verb else finish("job", "true", backend=store)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            least[verb] = min(least[verb], after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    ratios = {verb: round(least[verb] / least[""], 2) for verb in verbs}
    assert max(ratios.values()) < 2, ratios


def test_round_trips_of_the_verbs(ctl, finish, leased, redis_proxy):
    """With one lock in the store each costs fewer turns than two attempts; an attempt connects, takes, releases."""
    port = urlsplit(leased).port
    proxy = redis_proxy(port)  # which speaks no protocol
    url = leased.replace(f":{port}", f":{proxy.port}", 1)
    finish("job", "true", backend=url)
    turns = {}
    for argv in ("", "status job", "status", "history job", "metrics", "check"):
        proxy.reset()
        assert (ctl(*argv.split(), backend=url).err if argv else finish("job", "true", backend=url)[2]) == ""
        turns[argv] = proxy.trips
    attempt, check = turns.pop(""), turns.pop("check")
    assert max(turns.values()) < 2 * attempt, (attempt, turns)
    assert check <= 12  # more to ask, and on PostgreSQL on a second connection that logs in, as a run would have it
