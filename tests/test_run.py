"""One run from argv to exit status, on every backend: what the keeper and the guard owe the command and the lock."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cronlock import clock
from cronlock.errors import Interrupted
from cronlock.registry import open_backend
from cronlock.run import random_part
from cronlock.signals import Signals
from fixtures_store import CRONLOCK, Started, alive, until
from shell import Shell, need_root

Start = Callable[..., Started]
Finish = Callable[..., tuple[int, str, str]]

LOOP = "while :; do sleep .05; done"


def pid_in(path: Path) -> int:
    return int(until(lambda: path.exists() and path.read_text().strip()))


def test_five_at_once_run_once_and_the_rest_leave_silently(start: Start, store: str) -> None:
    began = time.monotonic()
    five = [start("job", "--", "sh", "-c", "echo run; sleep 3", backend=store) for _ in range(5)]
    ends = [p.end() for p in five]
    assert sorted(e[0] for e in ends) == [0, 75, 75, 75, 75]
    assert [e[1] for e in ends if e[0] == 0] == ["run\n"]
    assert [e for e in ends if e[0] == 75] == [(75, "", "")] * 4
    assert time.monotonic() - began < 10


def test_success_is_silent_and_streams_are_the_commands_own(finish: Finish, store: str) -> None:
    assert finish("j", "true", backend=store) == (0, "", "")
    assert finish("j", "sh", "-c", "echo out; echo err >&2; exit 3", backend=store) == (3, "out\n", "err\n")


def test_a_job_of_three_ttls_is_never_overtaken(start: Start, finish: Finish, tmp_path: Path, store: str) -> None:
    job = start("-t", "1", "long", "sh", "-c", "echo $$ > $T/up; sleep 3.5", backend=store)
    pid_in(tmp_path / "up")
    while job.poll() is None:
        status = finish("-t", "1", "long", "true", backend=store)[0]
        assert status == 75 or job.poll() is not None
    assert job.end()[0] == 0


def test_a_waiter_runs_as_soon_as_the_lock_is_free(start: Start, tmp_path: Path, store: str) -> None:
    holder = start("w", "sh", "-c", "echo $$ > $T/up; sleep 2; date +%s.%N > $T/end", backend=store)
    pid_in(tmp_path / "up")
    code, out, _ = start("-w", "20", "w", "date", "+%s.%N", backend=store).end()
    assert (code, holder.end()[0]) == (0, 0)
    assert 0 < float(out) - float((tmp_path / "end").read_text()) < 1.0  # the latency itself is measured in benchmarks/


def test_a_waiter_gives_up_in_time_and_leaves_nothing(start: Start, tmp_path: Path, store: str) -> None:
    start("w", "sh", "-c", "echo $$ > $T/up; sleep 20", backend=store)
    pid_in(tmp_path / "up")
    began = time.monotonic()
    code, out, err = start("-w", "1", "w", "echo", "no", backend=store).end()
    assert (code, out, err) == (75, "", "")
    assert 1.0 <= time.monotonic() - began < 4


def test_term_ends_the_whole_tree_and_frees_the_lock(start: Start, finish: Finish, tmp_path: Path, store: str) -> None:
    script = "sleep 290 & echo $! > $T/a; setsid sleep 291 & echo $! > $T/b; timeout 99 sleep 292 & wait"
    job = start("t", "sh", "-c", script, backend=store)
    pids = [pid_in(tmp_path / "a"), pid_in(tmp_path / "b")]
    job.send_signal(signal.SIGTERM)
    code, _, err = job.end()
    assert (code, err) == (143, "")
    assert not any(alive(p) for p in pids)
    assert finish("t", "true", backend=store)[0] == 0


def test_a_command_that_ignores_term_still_ends_and_a_second_term_hurries(start: Start, tmp_path: Path) -> None:
    job = start("--kill-after", "60", "t", "sh", "-c", f"trap '' TERM; echo $$ > $T/up; {LOOP}", backend=f"flock://{tmp_path}/l")
    pid_in(tmp_path / "up")
    job.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        job.wait(1.5)
    began = time.monotonic()
    job.send_signal(signal.SIGTERM)
    assert job.end() == (137, "", "")  # who asked for the end is told nothing of the KILL
    assert time.monotonic() - began < 4


def test_a_signal_passed_on_that_ends_the_command_is_no_trouble(start: Start, tmp_path: Path) -> None:
    job = start("t", "sh", "-c", "echo $$ > $T/up; exec sleep 297", backend=f"flock://{tmp_path}/l")
    pid_in(tmp_path / "up")
    job.send_signal(signal.SIGINT)
    assert job.end() == (130, "", "")


@pytest.mark.parametrize("how", ["exit 0", "exit 7"])
def test_a_command_that_handles_term_keeps_its_status(start: Start, tmp_path: Path, how: str) -> None:
    job = start("t", "sh", "-c", f"trap 'echo bye; {how}' TERM; echo $$ > $T/up; {LOOP}", backend=f"flock://{tmp_path}/l")
    pid_in(tmp_path / "up")
    job.send_signal(signal.SIGTERM)
    assert job.end()[:2] == (int(how[-1]), "bye\n")


def test_signals_arrive_once_as_themselves(start: Start, tmp_path: Path, store: str) -> None:
    traps = "".join(f"trap 'echo {s} >> $T/got' {s}; " for s in ("HUP", "USR1", "USR2", "QUIT"))
    job = start("s", "sh", "-c", f"{traps}trap 'echo INT >> $T/got; exit 5' INT; echo $$ > $T/up; {LOOP}", backend=store)
    pid_in(tmp_path / "up")
    got = tmp_path / "got"
    for n, name in enumerate(("HUP", "USR1", "USR2", "QUIT"), 1):
        os.kill(job.pid, getattr(signal, f"SIG{name}"))
        until(lambda n=n: got.exists() and len(got.read_text().split()) >= n)
    os.killpg(os.getpgid(job.pid), signal.SIGINT)  # cronlock's group: the command has one of its own
    assert job.end()[0] == 5
    assert got.read_text().split() == ["HUP", "USR1", "USR2", "QUIT", "INT"]


def test_sigkill_of_cronlock_stops_the_tree_before_the_lock_goes(start: Start, finish: Finish, tmp_path: Path, store: str) -> None:
    script = "while :; do date +%s.%N > $T/beat.new; mv $T/beat.new $T/beat; sleep .02; done"
    job = start("-t", "2", "k", "sh", "-c", f"(setsid sh -c '{script}') & echo up > $T/up; wait", backend=store)
    until((tmp_path / "beat").exists)
    os.kill(job.pid, signal.SIGKILL)
    until(lambda: finish("k", "sh", "-c", "date +%s.%N > $T/next", backend=store)[0] == 0, 10)
    last = (tmp_path / "beat").read_text()
    assert float(last) < float((tmp_path / "next").read_text())
    time.sleep(0.1)  # it would have beaten again by now
    assert (tmp_path / "beat").read_text() == last


def test_a_killed_guard_costs_nothing(start: Start, finish: Finish, tmp_path: Path, store: str) -> None:
    job = start("-t", "3", "g", "sh", "-c", "echo $$ > $T/up; sleep 2; echo done; exit 5", backend=store)
    pid_in(tmp_path / "up")
    os.kill(job.guard, signal.SIGKILL)
    assert finish("g", "true", backend=store)[0] == 75
    assert job.end()[:2] == (5, "done\n")
    assert finish("g", "true", backend=store)[0] == 0


def test_a_killed_guards_command_still_gets_signals(start: Start, tmp_path: Path) -> None:
    job = start("g", "sh", "-c", "setsid sleep 293 & echo $! > $T/up; wait", backend=f"flock://{tmp_path}/l")
    stray = pid_in(tmp_path / "up")
    os.kill(job.guard, signal.SIGKILL)
    time.sleep(0.2)  # either order must do; this one lets the command come over first
    job.send_signal(signal.SIGTERM)
    assert job.end()[0] == 143
    assert not alive(stray)


@pytest.mark.parametrize(("limit", "statuses"), [((), (143, 137)), (("--max-runtime", "2"), (124,))])
def test_a_frozen_guard_does_not_hold_an_end_up(
    start: Start, tmp_path: Path, store: str, limit: tuple[str, ...], statuses: tuple[int, ...]
) -> None:
    """At a TERM, or at --max-runtime."""
    job = start("--kill-after", "1", *limit, "g", "sh", "-c", "echo $$ > $T/up; exec sleep 294", backend=store)
    pid = pid_in(tmp_path / "up")
    os.kill(job.guard, signal.SIGSTOP)
    if not limit:
        job.send_signal(signal.SIGTERM)
    assert job.end()[0] in statuses
    assert not alive(pid)


def test_a_frozen_cronlock_is_stopped_by_its_guard_before_the_lease_runs_out(
    start: Start, finish: Finish, tmp_path: Path, leased: str
) -> None:
    script = "while :; do date +%s.%N > $T/beat.new; mv $T/beat.new $T/beat; sleep .02; done"
    job = start("-t", "2", "f", "setsid", "sh", "-c", script, backend=leased)  # setsid(1) must not see itself as a group's leader
    until((tmp_path / "beat").exists)
    os.kill(job.pid, signal.SIGSTOP)
    until(lambda: finish("f", "sh", "-c", "date +%s.%N > $T/next", backend=leased)[0] == 0, 10)
    time.sleep(0.3)  # it would have beaten again by now
    assert float((tmp_path / "beat").read_text()) < float((tmp_path / "next").read_text())
    os.kill(job.pid, signal.SIGCONT)
    code, _, err = job.end()
    assert code == 76
    assert err.count("\n") == 1
    assert "lock lost" in err


@pytest.mark.parametrize("sent", [signal.SIGSTOP, signal.SIGKILL])
def test_a_frozen_or_killed_cronlocks_command_has_time_to_clean_up(start: Start, tmp_path: Path, leased: str, sent: int) -> None:
    job = start("-t", "4", "f", "sh", "-c", f"trap 'sleep .3; echo bye > $T/bye; exit 0' TERM; echo $$ > $T/up; {LOOP}", backend=leased)
    command = pid_in(tmp_path / "up")
    os.kill(job.pid, sent)
    until(lambda: not alive(command), 10)
    assert (tmp_path / "bye").read_text() == "bye\n"
    os.kill(job.pid, signal.SIGCONT)
    assert job.end()[0] == (76 if sent == signal.SIGSTOP else -sent)


def test_a_stopped_command_takes_its_term(start: Start, tmp_path: Path) -> None:
    job = start("--kill-after", "60", "t", "sh", "-c", f"trap 'exit 7' TERM; echo $$ > $T/up; {LOOP}", backend=f"flock://{tmp_path}/l")
    os.kill(pid_in(tmp_path / "up"), signal.SIGSTOP)
    job.send_signal(signal.SIGTERM)
    assert job.end(10)[0] == 7


def test_a_long_kill_after_does_not_outlast_the_lease(start: Start, tmp_path: Path, leased: str) -> None:
    """cronlock is frozen while the command takes its time to stop: nobody renews any more, so it has no more than the lease."""
    traps = "trap 'echo > $T/term' TERM"
    job = start("-t", "3", "--kill-after", "60", "f", "sh", "-c", f"{traps}; echo $$ > $T/up; {LOOP}", backend=leased)
    command = pid_in(tmp_path / "up")
    job.send_signal(signal.SIGTERM)
    until((tmp_path / "term").exists)
    os.kill(job.pid, signal.SIGSTOP)
    until(lambda: not alive(command), 5)
    os.kill(job.pid, signal.SIGCONT)
    assert job.end()[0] in (76, 137)


def test_a_short_freeze_of_cronlock_costs_nothing(start: Start, finish: Finish, tmp_path: Path, leased: str) -> None:
    job = start("-t", "6", "f", "sh", "-c", "echo $$ > $T/up; sleep 4; exit 3", backend=leased)
    pid_in(tmp_path / "up")
    os.kill(job.pid, signal.SIGSTOP)
    time.sleep(2.5)  # more than a third of the ttl: the command is frozen until the lease is renewed
    os.kill(job.pid, signal.SIGCONT)
    assert job.end() == (3, "", "")


def test_a_command_frozen_with_everything_goes_on_when_the_lease_still_stands(start: Start, tmp_path: Path, leased: str) -> None:
    job = start("-t", "6", "f", "sh", "-c", "echo $$ > $T/up; sleep 3; exit 3", backend=leased)
    command = pid_in(tmp_path / "up")
    everybody = [job.pid, job.guard, command]
    for pid in everybody:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(2.5)
    for pid in everybody:
        os.kill(pid, signal.SIGCONT)
    assert job.end() == (3, "", "")


def test_max_runtime_ends_the_tree_with_124(finish: Finish, tmp_path: Path, store: str) -> None:
    began = time.monotonic()
    code, out, err = finish(
        "--max-runtime",
        "1",
        "--kill-after",
        "1",
        "m",
        "sh",
        "-c",
        "trap '' TERM; setsid sleep 295 & echo $! > $T/p; sleep 30; echo never",
        backend=store,
    )
    assert (code, out) == (124, "")
    assert err.count("\n") == 1
    assert "--max-runtime 1s" in err
    assert time.monotonic() - began < 8
    assert not alive(pid_in(tmp_path / "p"))


@pytest.mark.root
def test_what_cannot_be_killed_is_named_and_the_lock_kept_until_it_is_gone() -> None:
    """Another user's process. It ends by itself, after a time for which nobody else gets in."""
    need_root()
    with Shell() as sh:
        shutil.copy(shutil.which("setpriv") or "", sh.T / "as-root")
        (sh.T / "as-root").chmod(0o4755)
        done = sh.run(
            """
            ROOT="$T/as-root --reuid 0 --regid 0 --clear-groups"; export ROOT
            cronlock --max-runtime 1s --kill-after 0.2s n sh -c '$ROOT sleep 7 & echo $! >$T/pid; wait' 2>$T/err &
            await grep -q alive $T/err
            cronlock n true; echo during=$?
            wait $!; echo rc=$?
            cronlock n true; echo after=$?
            echo pid=$(cat $T/pid); cat $T/err
            """,
            nobody=True,
        )
    assert (done["during"], done["rc"], done["after"]) == ("75", "124", "0"), done
    assert done.out.count("still alive after KILL") == 1
    assert f"the lock is kept as long as can be: pid {done['pid']}\n" in done.out


def test_a_daemon_left_behind_holds_nothing_up(start: Start, finish: Finish, tmp_path: Path, store: str) -> None:
    began = time.monotonic()
    assert finish("d", "sh", "-c", "setsid sleep 20 </dev/null >/dev/null 2>&1 & echo $! > $T/p; echo started", backend=store)[:2] == (
        0,
        "started\n",
    )
    assert finish("d", "true", backend=store)[0] == 0
    assert time.monotonic() - began < 8
    daemon = pid_in(tmp_path / "p")
    assert alive(daemon)
    targets = {os.readlink(f"/proc/{daemon}/fd/{fd}") for fd in os.listdir(f"/proc/{daemon}/fd")}
    os.kill(daemon, signal.SIGKILL)
    assert not any("lock" in t or "socket" in t for t in targets), targets


def test_a_pipe_that_a_daemon_keeps_open_does_not_hold_cronlock_up(tmp_path: Path, start: Start) -> None:
    job = start("d", "sh", "-c", "echo hi; sleep 20 & echo $! > $T/p", backend=f"flock://{tmp_path}/l")
    began = time.monotonic()
    job.wait(10)
    assert time.monotonic() - began < 5
    os.kill(pid_in(tmp_path / "p"), signal.SIGKILL)


def test_the_guard_holds_no_pipe_of_crons(start: Start, tmp_path: Path, store: str) -> None:
    job = start("g", "sh", "-c", "exec >/dev/null 2>&1; echo $$ > $T/up; sleep 3", backend=store, pass_fds=())
    pid_in(tmp_path / "up")
    guard = job.guard
    assert Path(f"/proc/{guard}/comm").read_text() == "cronlock-guard\n"
    until(lambda: {os.readlink(f"/proc/{guard}/fd/{fd}") for fd in (0, 1, 2)} == {"/dev/null"})  # once it has started the command
    assert os.getpgid(guard) == guard


def test_the_command_gets_the_callers_world(store: str) -> None:
    """Environment, working directory, open descriptors, closed stdin, signal mask and dispositions."""
    probe = (
        "import os;"
        "start = dict(v.split('=', 1) for v in open('/proc/self/environ').read().split(chr(0)) if v);"
        "status = dict(line.split(':', 1) for line in open('/proc/self/status'));"
        "print(sorted(f for f in map(int, os.listdir('/proc/self/fd')) if f > 2 and os.path.exists(f'/proc/self/fd/{f}')));"
        "print(*(start.get(n) for n in ('LC_CTYPE', 'CRONLOCK_TTL', 'CRONLOCK_HEARTBEAT')));"
        "print(status['SigBlk'].strip(), hex(int(status['SigIgn'], 16) & ~(3 << 31)))"  # glibc's posix_spawn ignores its own 32 and 33
    )
    read, write = os.pipe()
    plain = {"PATH": os.environ["PATH"]}
    extra = {"CRONLOCK_TTL": "50", "CRONLOCK_HEARTBEAT": "http://127.0.0.1:1/secret", "CRONLOCK_BACKEND": store}
    extra |= {"CRONLOCK_QUIET": "1", "CRONLOCK_HEARTBEAT_TIMEOUT": "1s"}
    argv = [sys.executable, "-I", "-c", probe]
    unwrapped = subprocess.run(argv, capture_output=True, text=True, pass_fds=(read,), env=plain, check=True)
    wrapped = subprocess.run([CRONLOCK, "e", *argv], capture_output=True, text=True, pass_fds=(read,), env=plain | extra, check=True)
    assert (unwrapped.stderr, wrapped.stderr) == ("", "")
    expected = unwrapped.stdout.splitlines()
    expected[1] = "None 50 None"  # one's own options pass through, but not the heartbeat's secret, nor the LC_CTYPE that Python adds
    assert wrapped.stdout.splitlines() == expected
    os.close(read)
    os.close(write)


def test_what_the_command_is_told(finish: Finish, store: str) -> None:
    known = 'test -n "$CRONLOCK_RUN_ID" -a ${#CRONLOCK_RUN_TOKEN} -ge 16'
    script = f'echo "$CRONLOCK_RUN_NAME|$CRONLOCK_RUN_STORE"; echo "$CRONLOCK_RUN_FENCE"; {known}'
    fences = []
    for _ in range(2):
        code, out, err = finish("na me", "sh", "-c", script, backend=store)
        assert (code, err) == (0, "")
        assert out.startswith("na me|")
        fences.append(int(out.splitlines()[1]))
    assert fences[0] < fences[1]


def test_a_run_without_a_lock_is_not_told_of_the_one_around_it(finish: Finish, tmp_path: Path) -> None:
    """The outer run's fence protects what the outer run writes: for the inner name it would let a stranger in."""
    inner = [str(CRONLOCK), "-q", "-b", "redis://127.0.0.1:1", "--on-unavailable", "run", "inner"]
    code, out, err = finish("outer", *inner, "env", backend=f"flock://{tmp_path}/l")
    told = dict(line.split("=", 1) for line in out.splitlines() if line.startswith("CRONLOCK_RUN_"))
    assert (code, err, told.pop("CRONLOCK_RUN_HELD") != "") == (0, "", True)
    assert told == {"CRONLOCK_RUN_NAME": "inner", "CRONLOCK_RUN_STORE": "redis://127.0.0.1:1"}


def test_ignored_at_the_start_stays_ignored(start: Start, tmp_path: Path) -> None:
    """nohup cronlock …: a hang-up is nobody's business."""
    job = start(
        "n",
        "sh",
        "-c",
        "echo $$ > $T/up; sleep 1.5",
        backend=f"flock://{tmp_path}/l",
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    pid = pid_in(tmp_path / "up")
    assert int(Path(f"/proc/{pid}/status").read_text().split("SigIgn:")[1].split()[0], 16) & 1
    job.send_signal(signal.SIGHUP)
    assert job.end()[0] == 0


def test_signals_blocked_at_the_start_come_to_us_and_stay_blocked_for_the_command(start: Start, tmp_path: Path) -> None:
    options: dict[str, Any] = {"backend": f"flock://{tmp_path}/l", "preexec_fn": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {15, 17})}
    job = start("--kill-after", "0.2", "b", "sh", "-c", "echo $$ > $T/up; exec sleep 299", **options)
    status = Path(f"/proc/{pid_in(tmp_path / 'up')}/status").read_text()
    assert int(status.split("SigBlk:")[1].split()[0], 16) == 1 << 14 | 1 << 16
    job.send_signal(signal.SIGTERM)
    assert job.end()[0] == 137  # the command does not hear it


def test_no_fork_leaves_the_callers_signals_as_they_were(tmp_path: Path) -> None:
    look = ("grep", "-E", "Sig(Blk|Ign)", "/proc/self/status")
    options: dict[str, Any] = {"preexec_fn": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1}), "timeout": 20}
    expected = subprocess.check_output(look, **options)
    assert subprocess.check_output([CRONLOCK, "-b", f"flock://{tmp_path}/l", "-F", "x", *look], **options) == expected


def test_closed_standard_descriptors_are_survived(tmp_path: Path) -> None:
    """No lock gets one of their numbers: a line meant for stderr would be written into it."""
    ours = "for fd in 0 1 2; do readlink /proc/$KEEPER/fd/$fd; done >$T/ran; exit 4"
    script = f"export KEEPER=$$ T={tmp_path}; exec {CRONLOCK} -b flock://{tmp_path}/l c sh -c '{ours}' <&- >&- 2>&-"
    assert subprocess.run(["sh", "-c", script], check=False, timeout=20).returncode == 4
    assert (tmp_path / "ran").read_text() == "/dev/null\n" * 3


def test_a_locale_of_the_callers_own_is_passed_on(tmp_path: Path) -> None:
    env = {"PATH": os.environ["PATH"], "CRONLOCK_BACKEND": f"flock://{tmp_path}/l", "LC_CTYPE": "C.UTF-8"}
    assert subprocess.check_output([CRONLOCK, "e", "sh", "-c", "echo $LC_CTYPE"], env=env, text=True, timeout=20) == "C.UTF-8\n"


def test_an_ignored_sigchld_loses_no_status(start: Start, tmp_path: Path) -> None:
    job = start(
        "c", "sh", "-c", "exit 9", backend=f"flock://{tmp_path}/l", preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    )
    assert job.end()[0] == 9


def test_a_standby_holds_back_and_then_runs(finish: Finish, tmp_path: Path) -> None:
    began = time.monotonic()
    standby = ("--once-per", "1h", "--prefer", "nowhere", "--standby-delay", "2s")
    assert finish(*standby, "j", "echo", "ran", backend=f"flock://{tmp_path}/l") == (0, "ran\n", "")
    assert time.monotonic() - began >= 2


def test_a_signal_while_it_holds_back_ends_it(start: Start, finish: Finish, tmp_path: Path) -> None:
    store = f"flock://{tmp_path}/l"
    standby = start("--once-per", "1d", "--prefer", "nowhere", "--standby-delay", "1h", "j", "echo", "no", backend=store)
    until(lambda: "sleep" in _wchan(standby.pid))
    standby.send_signal(signal.SIGTERM)
    assert standby.end(10)[:2] == (143, "")
    assert finish("--once-per", "1d", "j", "true", backend=store)[0] == 0  # it has used up nothing


def test_jitter_is_any_part_of_it() -> None:
    parts = [random_part(10.0) for _ in range(1000)]
    assert 0 <= min(parts) < 1 < 9 < max(parts) < 10


def test_a_signal_while_waiting_ends_it_with_its_own_status(start: Start, finish: Finish, tmp_path: Path, store: str) -> None:
    start("w", "sh", "-c", "echo $$ > $T/up; sleep 20", backend=store)
    pid_in(tmp_path / "up")
    waiter = start("-w", "60", "w", "echo", "no", backend=store)
    until(lambda: "select" in (w := _wchan(waiter.pid)) or "poll" in w or "flock" in w or "lock" in w or "sleep" in w)
    waiter.send_signal(signal.SIGTERM)
    began = time.monotonic()
    assert waiter.end()[:2] == (143, "")
    assert time.monotonic() - began < 3


def _wchan(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/wchan").read_text() or "?"
    except OSError:
        return ""


def test_a_signal_at_any_moment_leaves_no_lock_behind(start: Start, finish: Finish, store: str) -> None:
    for i in range(12):
        job = start("-t", "60", "race", "sleep", "30", backend=store)
        time.sleep(i * 0.04)
        job.send_signal(signal.SIGTERM)
        assert job.end()[0] in (143, -15)  # -15: it came before Python ran a line of ours
        assert finish("race", "true", backend=store)[0] == 0, i


BETWEEN = """
import os, signal, sys
from cronlock import registry, run
from cronlock.model import Job
def observe(event):
    if event.kind == "acquired":
        os.kill(os.getpid(), signal.SIGTERM)
outcome = run.run(Job("job", ("echo", "ran"), environ=dict(os.environ)), registry.open_backend(sys.argv[1]), observe)
print(outcome.word, outcome.signal)
"""


def test_a_signal_between_the_grant_and_the_command_gives_the_lock_back(finish: Finish, store: str) -> None:
    assert subprocess.check_output([sys.executable, "-c", BETWEEN, store], text=True, timeout=20) == "interrupted 15\n"
    assert finish("job", "true", backend=store) == (0, "", "")
    backend = open_backend(store)
    assert [run.outcome for run in backend.history("job", clock.now() + 5)] == ["ok"]
    backend.close()


def test_no_fork_becomes_the_command_and_the_lock_lives_with_it(start: Start, finish: Finish, tmp_path: Path) -> None:
    url = f"flock://{tmp_path}/l"
    job = start("-F", "x", "sh", "-c", "echo $$ > $T/up; sleep 1.5; exit 6", backend=url)
    assert pid_in(tmp_path / "up") == job.pid
    assert finish("x", "true", backend=url)[0] == 75
    assert job.end()[0] == 6
    assert finish("x", "true", backend=url)[0] == 0


def test_no_fork_of_a_command_that_is_not_there_is_no_run_that_vanished(finish: Finish, tmp_path: Path) -> None:
    url = f"flock://{tmp_path}/l"
    assert finish("-F", "x", "/no/such", backend=url)[0] == 127
    assert finish("x", "true", backend=url) == (0, "", "")
    assert [run.outcome for run in open_backend(url).history("x", clock.now() + 5)] == ["failed", "ok"]


def test_no_fork_and_a_signal_just_before_the_command_is_not_swallowed() -> None:
    """It comes after the last look at what was received: the command, which takes this process over, must have it."""
    script = "import os, cronlock.signals as s; own = s.Signals().__enter__(); os.kill(os.getpid(), 15); own.give_back(); os._exit(0)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -signal.SIGTERM


def on_terminal(*argv: str, then: Callable[[int, int], object], ready: Path, env: dict[str, str]) -> tuple[int, bytes]:
    """The status and output of a command that has a terminal. `then` is told its pid and the terminal's other end once `ready` exists."""
    fd, its = os.openpty()
    process = subprocess.Popen(["setsid", "--ctty", *argv], stdin=its, stdout=its, stderr=its, env={**os.environ, **env})
    os.close(its)
    until(ready.exists)
    then(process.pid, fd)
    seen = b""
    while True:
        assert select.select([fd], [], [], 30)[0], f"it has not ended: {seen!r}"
        try:
            chunk = os.read(fd, 4096)
        except OSError:
            break
        if not chunk:
            break
        seen += chunk
    os.close(fd)
    return process.wait(30), seen


NOTES = """
import os, signal, sys, time
def note(signum, _frame):
    print(signal.Signals(signum).name, file=open("got", "a"))
for signum in (signal.SIGINT, signal.SIGUSR1, signal.SIGTERM):
    signal.signal(signum, note)
open("up", "w")
while not os.path.exists("end"):
    time.sleep(0.05)
sys.exit(5)
"""


def test_on_a_terminal_each_signal_reaches_the_command_once(tmp_path: Path) -> None:
    """The terminal gives ^C to the command as it does to us, and a kill of the whole group gives TERM; a kill of cronlock alone doesn't."""
    (tmp_path / "notes.py").write_text(NOTES)

    def signals(pid: int, fd: int) -> None:
        expected = []
        for send, name in (
            (lambda: os.write(fd, b"\x03"), "SIGINT"),
            (lambda: os.kill(pid, signal.SIGINT), "SIGINT"),
            (lambda: os.kill(pid, signal.SIGUSR1), "SIGUSR1"),
            (lambda: os.killpg(pid, signal.SIGTERM), "SIGTERM"),
        ):
            send()
            expected.append(name)
            until(lambda: (tmp_path / "got").exists() and (tmp_path / "got").read_text().split()[-len(expected) :] == expected)
        (tmp_path / "end").touch()

    script = f"cd $T; setsid sleep 296 & echo $! > $T/stray; exec {sys.executable} notes.py"
    argv = (CRONLOCK, "--kill-after", "60", "-b", f"flock://{tmp_path}/l", "c", "sh", "-c", script)
    code, _ = on_terminal(*argv, then=signals, ready=tmp_path / "up", env={"T": str(tmp_path)})
    assert (code, (tmp_path / "got").read_text().split()) == (5, ["SIGINT", "SIGINT", "SIGUSR1", "SIGTERM"])
    assert not alive(pid_in(tmp_path / "stray"))


def test_a_command_on_a_terminal_can_read_it(tmp_path: Path) -> None:
    script = "echo up > $T/up; read x; echo got-$x"
    code, seen = on_terminal(
        CRONLOCK,
        "-b",
        f"flock://{tmp_path}/l",
        "c",
        "sh",
        "-c",
        script,
        then=lambda _, fd: os.write(fd, b"hello\n"),
        ready=tmp_path / "up",
        env={"T": str(tmp_path)},
    )
    assert code == 0
    assert b"got-hello" in seen


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="a PID namespace needs root")
def test_as_process_1_it_reaps_strangers_and_keeps_its_commands_status(tmp_path: Path) -> None:
    """What the command leaves is the guard's to reap; what `docker exec` leaves is its own."""
    zombies = "cat /proc/[0-9]*/stat | grep -c ') Z ' > $T/zombies"
    script = f"for i in 1 2 3; do (setsid sleep .2 &) ; done; : > $T/up; until [ -e $T/go ]; do sleep .05; done; sleep 1; {zombies}; exit 7"
    cronlock = (CRONLOCK, "-b", f"flock://{tmp_path}/l", "p", "sh", "-c", script)
    argv = ["unshare", "--pid", "--mount-proc", "--fork", "--kill-child", *cronlock]
    with subprocess.Popen(argv, env={**os.environ, "T": str(tmp_path)}) as unshare:
        until((tmp_path / "up").exists)
        pid = Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children").read_text().strip()
        subprocess.run(["nsenter", "--target", pid, "--pid", "sh", "-c", "(sleep .2 &)"], check=True)
        (tmp_path / "go").touch()
        code = unshare.wait(30)
    assert (code, (tmp_path / "zombies").read_text()) == (7, "0\n")


def test_a_child_that_the_caller_had_is_no_part_of_the_tree(tmp_path: Path) -> None:
    script = f'sleep 30 & echo $! > {tmp_path}/p; exec {CRONLOCK} -b flock://{tmp_path}/l c sh -c "kill -TERM \\$PPID; exit 3"'
    code = subprocess.run(["sh", "-c", script], check=False, timeout=20).returncode
    bystander = pid_in(tmp_path / "p")
    assert alive(bystander)
    os.kill(bystander, signal.SIGKILL)
    assert code == 3


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a mount namespace")
@pytest.mark.parametrize("stdin", ["", "0<&-"])
def test_without_dev_null_the_commands_status_is_its_own(tmp_path: Path, stdin: str) -> None:
    script = f"mount -t tmpfs -o ro tmpfs /dev && {CRONLOCK} -b flock://{tmp_path} job sh -c 'echo ran; exit 3' {stdin}"
    done = subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "ran\n", "")


DIES = """
import os, signal, sys
from cronlock import cli, guard
real = guard.spawn
def spawn(orders):
    real(orders)
    os.kill(os.getpid(), signal.SIGKILL)
guard.spawn = spawn
sys.exit(cli.start(["-b", sys.argv[1], "job", "sh", "-c", "sleep 60"], dict(os.environ)))
"""


def test_a_guard_that_dies_before_it_names_the_command_is_no_success(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", DIES, f"flock://{tmp_path}"], capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 128 + signal.SIGKILL, done


DEFECT = """
from cronlock import cli
cli.open_backend = lambda url: 1 / 0
cli.main()
"""


@pytest.mark.parametrize(("argv", "story"), [((), False), (("--verbose",), True), (("job", "grep", "-v"), False)])
def test_a_defect_of_ours_is_one_line_and_70_and_the_whole_story_with_v(argv: tuple[str, ...], story: bool) -> None:
    """A traceback that Python prints itself ends with 1, which is a command's own."""
    done = subprocess.run([sys.executable, "-c", DEFECT, *argv, "job", "true"], capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 70
    assert done.stderr.startswith("cronlock: ") and "internal error, please report it: ZeroDivisionError" in done.stderr.splitlines()[0]
    assert ("Traceback" in done.stderr) == story and (done.stderr.count("\n") > 1) == story


def test_what_a_signal_interrupts_is_not_interrupted_again() -> None:
    """Neither on its way out of the wait, nor after one that it never got into."""
    signals = Signals()
    signals.interruptible().__enter__()
    with pytest.raises(Interrupted):
        signals._handle(signal.SIGTERM, None)
    signals._handle(signal.SIGHUP, None)
    with pytest.raises(Interrupted), signals.interruptible():
        pytest.fail("it must not get here")
    signals._handle(signal.SIGTERM, None)
    assert signals.received == [signal.SIGTERM, signal.SIGHUP, signal.SIGTERM]
    os.close(signals._bell)
    os.close(signals._ringer)


def test_a_signal_while_earlier_ones_are_delivered_comes_once() -> None:
    script = """
import os, signal, cronlock.signals as s
own = s.Signals().__enter__()
os.kill(os.getpid(), signal.SIGUSR1)
def deliver(signum):
    got.append(signum)
    if signum == signal.SIGUSR1:
        os.kill(os.getpid(), signal.SIGTERM)
got = []
own.deliver_to(deliver)
os.kill(os.getpid(), signal.SIGUSR2)
assert got == [signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR2], got
"""
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=20).returncode == 0
