"""What tests/chaos found, each as a case of its own.

The guard's own cases run in a process of their own: its parent reaps and kills whatever descends from it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import hosts
from chaos import stores
from cronlock import clock
from cronlock import run as run_module
from cronlock.errors import BackendError
from cronlock.model import Busy, Grant, Job
from cronlock.signals import Signals
from fixtures_nfs import unusable
from fixtures_postgresql import Postgres
from fixtures_redis import RedisServer
from fixtures_store import Started, alive, until

GUARD = """
import fcntl, os, signal, sys, termios, time
from cronlock import clock, guard

INF = float("inf")

def start(script):
    return guard.Guard.start(guard.Orders(("/bin/sh", "-c", script), dict(os.environ), set(), (), 1.0, guard.FOREVER))

def until(what, seconds=10.0):
    end = time.monotonic() + seconds
    while not (answer := what()):
        assert time.monotonic() < end, said
        time.sleep(0.01)
    return answer

def state(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]

def hear(keeper, word):
    said.extend(keeper.messages())
    return any(text.split()[0] == word for text in said)

def is_read(keeper):
    return not any(fcntl.ioctl(keeper.fd, termios.TIOCOUTQ, bytes(4)))

def doze(keeper, *, lease=60.0, grace=0.0, seconds=0.5):
    began = clock.now()
    keeper.valid(began + lease, grace, 0.3)
    until(lambda: is_read(keeper))
    os.kill(keeper.pid, signal.SIGSTOP)
    until(lambda: clock.now() > began + seconds)
    os.kill(keeper.pid, signal.SIGCONT)

said = []
"""


def with_guard(script: str) -> list[str]:
    """What was said to cronlock, a message a line."""
    done = subprocess.run([sys.executable, "-c", GUARD + script + "\nprint(*said, sep='\\n')"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_stop_after_the_command_has_ended_by_itself_is_over() -> None:
    """The store is away, and the command ends while the last try to renew still waits: cronlock then told a guard that had
    left to stop the tree, and waited for ever for its answer."""
    said = with_guard(
        """
keeper = start("exit 7")
until(lambda: state(keeper.pid) == "Z")
keeper.stop(1.0)
until(lambda: hear(keeper, "gone"))
"""
    )
    assert said[1:] == [f"ended {7 << 8}", "gone"]


def test_the_same_when_the_end_was_already_heard() -> None:
    """And the status is the command's own, not one made up for a command that nobody can find any more."""
    said = with_guard(
        """
keeper = start("exit 7")
until(lambda: hear(keeper, "ended"))
keeper.stop(1.0)
until(lambda: hear(keeper, "gone"))
"""
    )
    assert [text for text in said if text != "gone"][1:] == [f"ended {7 << 8}"]


@pytest.mark.parametrize("heard", [True, False])
def test_a_guard_killed_while_it_stops_what_the_command_left(heard: bool, tmp_path: Path) -> None:
    """It has reported the command's end, not that of a helper which ignores TERM: that one is still to be stopped."""
    up = tmp_path / "up"
    helper = tmp_path / "helper"
    helper.write_text(f"trap '' TERM\ntouch {up}\nsleep 60\n")
    said = with_guard(
        f"""
keeper = start("trap 'exit 7' TERM; setsid sh {helper} & wait; wait")
until(lambda: hear(keeper, "started") and os.path.exists("{up}"))
command = int(said[0].split()[1])
keeper.stop(1.0)
until(lambda: not os.path.exists(f"/proc/{{command}}"))  # the guard has reaped it
if {heard}:
    until(lambda: hear(keeper, "ended"))
os.kill(keeper.pid, signal.SIGKILL)
until(lambda: hear(keeper, "gone"))
try:
    os.waitpid(-1, os.WNOHANG)
    said.append("somebody is left")
except ChildProcessError:
    pass
"""
    )
    assert [text for text in said if text.startswith("ended")] == [f"ended {7 << 8}"]
    assert "somebody is left" not in said


@pytest.mark.parametrize(("left", "ended"), [(-1.0, signal.SIGKILL), (60.0, 7 << 8)])
def test_what_is_frozen_goes_on_with_a_lock_only(left: float, ended: int, tmp_path: Path) -> None:
    """A renewal that comes too late does not thaw it, and without a lock it runs not one more instruction, not even its trap."""
    up = tmp_path / "up"
    said = with_guard(
        f"""
keeper = start("trap 'exit 7' TERM; touch {up}; while :; do sleep .01; done")
until(lambda: hear(keeper, "started") and os.path.exists("{up}"))
doze(keeper)
until(lambda: state(said[0].split()[1]) == "T")
keeper.valid(clock.now() + {left}, 0.0, float("inf"))
keeper.stop(5.0)
until(lambda: hear(keeper, "gone"))
"""
    )
    assert said[1:3] == ["stopping told", f"ended {ended:d}"]


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("valid(clock.now() + 3.0, 2.0, INF)", "messages()", "expired"),
        ("messages()", "valid(clock.now() + 3.0, 2.0, INF)", "expired"),
        ("messages()", "stop(5.0)", "told"),
        ("messages()", "pass_on(signal.SIGTERM)", "signal"),
    ],
)
def test_who_takes_over_from_a_killed_guard_does_what_it_did(before: str, after: str, why: str, tmp_path: Path) -> None:
    up = tmp_path / "up"
    said = with_guard(
        f"""
keeper = start("trap 'exit 7' TERM; touch {up}; while :; do sleep .01; done")
until(lambda: hear(keeper, "started") and os.path.exists("{up}"))
command = said[0].split()[1]
keeper.{before}
os.kill(keeper.pid, signal.SIGKILL)
until(lambda: hear(keeper, "-") or keeper.fd == -1)
if "{before}" == "messages()":
    keeper.valid(clock.now() + 60.0, 0.0, 0.1)
    until(lambda: time.sleep(0.2) or keeper.messages() or state(command) == "T")  # each turn comes too late
    keeper.valid(clock.now() + 60.0, 0.0, INF)
    until(lambda: state(command) != "T")
keeper.{after}
until(lambda: hear(keeper, "stopping"))
assert keeper.wait() < guard.TURN
until(lambda: "gone" in said or hear(keeper, "gone"))
"""
    )
    assert said[1:] == [f"stopping {why}", f"ended {7 << 8}", "gone"]


@pytest.mark.parametrize("frozen", [False, True])
def test_who_is_told_again_to_stop_answers_again(frozen: bool, tmp_path: Path) -> None:
    """The lock got lost while the command took its time to end at a TERM: the guard, which had said already that it is stopping
    the tree, said nothing, was taken for frozen and killed; and who took over did so with the first time to KILL, not the last."""
    up, terms = tmp_path / "up", tmp_path / "terms"
    said = with_guard(
        f"""
keeper = start("trap 'echo >> {terms}' TERM; touch {up}; while :; do sleep .01; done")
until(lambda: hear(keeper, "started") and os.path.exists("{up}"))
if {frozen}:
    os.kill(keeper.pid, signal.SIGSTOP)
keeper.stop(60.0)
{frozen} or until(lambda: os.path.exists("{terms}"))
keeper.stop(0.5)
{frozen} and keeper.kill()
{frozen} or keeper.stop(60.0)
until(lambda: hear(keeper, "gone"))
"""
    )
    assert said.count("stopping told") == (1 if frozen else 3)
    assert frozen or terms.read_text() == "\n"


ENDS = """
keeper = start("trap 'exit 7' TERM USR1; touch {up}; while :; do sleep .01; done")
until(lambda: hear(keeper, "started") and os.path.exists("{up}"))
command = int(said[0].split()[1])
"""


@pytest.mark.parametrize("sent", ["SIGKILL", "SIGSTOP"])
def test_an_end_that_came_with_the_guards_own_is_not_lost(sent: str, tmp_path: Path) -> None:
    """It was killed just before the command ended; or it reported the end and left, with messages of ours unread."""
    said = with_guard(
        ENDS.format(up=tmp_path / "up")
        + f"""
os.kill(keeper.pid, signal.{sent})
for _ in range(3):
    keeper.valid(*guard.FOREVER)
os.kill(command, signal.SIGUSR1)
until(lambda: state(command) == "Z")
os.kill(keeper.pid, signal.SIGCONT)
until(lambda: state(keeper.pid) == "Z")
until(lambda: hear(keeper, "ended"))
"""
    )
    assert said[1:] == [f"ended {7 << 8}"]


@pytest.mark.parametrize("end", ["failed", "gone"])
def test_a_guard_that_has_said_how_it_ended_leaves_nothing_to_take_over(end: str) -> None:
    """What else descends from us is not the command's."""
    said = with_guard(
        f"""
bystander = os.posix_spawn("/bin/sleep", ["sleep", "60"], os.environ)
if "{end}" == "failed":
    keeper = guard.Guard.start(guard.Orders(("/no/such",), {{}}, set(), (), 1.0, guard.FOREVER))
else:
    keeper = start("sleep 60")
    until(lambda: hear(keeper, "started"))
    keeper.stop(1.0)
until(lambda: state(keeper.pid) == "Z")
until(lambda: hear(keeper, "{end}"))
os.kill(bystander, signal.SIGUSR1)
assert os.waitpid(bystander, 0)[1] == signal.SIGUSR1
"""
    )
    assert end == "gone" or said == ["failed 2"]


def test_what_is_being_stopped_is_not_frozen(tmp_path: Path) -> None:
    """Nobody would thaw it where the lock is lost: the time to clean up is its own."""
    said = with_guard(
        ENDS.format(up=tmp_path / "up").replace("exit 7", "sleep .5; exit 7")
        + """
keeper.stop(60.0)
doze(keeper)
until(lambda: hear(keeper, "gone"))
"""
    )
    assert said[1:3] == ["stopping told", f"ended {7 << 8}"]


@pytest.mark.parametrize(
    ("renewed", "patience", "then"),
    [
        (True, 20.0, [f"ended {7 << 8}"]),  # the lock still stands: it goes on
        (False, 0.5, ["stopping expired", f"ended {signal.SIGKILL:d}", "gone"]),  # nobody says so: not one more instruction
    ],
)
def test_a_guard_that_slept_through_its_lease_waits_for_a_verdict(renewed: bool, patience: float, then: list[str], tmp_path: Path) -> None:
    said = with_guard(
        f"guard.VERDICT = {patience}\n"
        + ENDS.format(up=tmp_path / "up")
        + f"""
doze(keeper, lease=1.0, grace=0.2, seconds=1.1)
until(lambda: state(command) == "T")
if {renewed}:
    keeper.valid(clock.now() + 60.0, 0.0, INF)
    os.kill(command, signal.SIGUSR1)
until(lambda: hear(keeper, "{then[-1].split()[0]}"))
"""
    )
    assert said[1 : 1 + len(then)] == then


def test_a_renewal_that_is_there_when_the_guard_wakes_up_is_verdict_enough(tmp_path: Path) -> None:
    """Else the command would be frozen until the next one, a third of the ttl later."""
    said = with_guard(
        ENDS.format(up=tmp_path / "up")
        + """
os.kill(keeper.pid, signal.SIGSTOP)
keeper.valid(clock.now() + 60.0, 0.0, 0.3)
keeper.pass_on(signal.SIGUSR1)
began = clock.now()
until(lambda: clock.now() > began + 0.5)
os.kill(keeper.pid, signal.SIGCONT)
until(lambda: hear(keeper, "ended"))
"""
    )
    assert said[1:] == [f"ended {7 << 8}"]


def test_what_was_frozen_in_time_has_what_is_left_of_the_lease_to_clean_up(tmp_path: Path) -> None:
    said = with_guard(
        ENDS.format(up=tmp_path / "up")
        + """
doze(keeper, lease=8.0, grace=6.0)
until(lambda: hear(keeper, "gone"))
"""
    )
    assert said[1:3] == ["stopping expired", f"ended {7 << 8}"]


class Flaky:
    """Busy, then no answer, then a grant: which may be that of the try that got no answer."""

    where, timeout = "flaky:", 1.0

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.warnings: list[str] = []

    def try_acquire(self, grant: Grant, until: float) -> object:
        self.asked.append(clock.now())
        if len(self.asked) == 1:
            return Busy()
        if len(self.asked) == 2:
            raise BackendError("no answer")
        return "a lease"

    def abandon(self, grant: Grant, until: float) -> None:
        pass

    def wait(self, name: str, until: float) -> None:
        pass


def test_validity_counts_from_the_first_try_that_was_not_answered() -> None:
    """The store may have granted it then, and the lease runs since; the later try only hears of it (docs/model: COUNT_FROM_LAST_TRY)."""
    backend = Flaky()
    job = Job("job", ("true",), wait=5.0)
    grant = Grant("job", run_module.new_run(job), 3.0, 0.0, False)
    answer, asked = run_module.acquire(job, grant, backend, Signals(), lambda _: None)
    assert answer == "a lease"
    assert backend.asked[1] - 0.1 <= asked <= backend.asked[1] < backend.asked[2]


def test_a_frozen_guard_and_a_silent_store(own_redis: RedisServer, start: Callable[..., Started], tmp_path: Path) -> None:
    """The command is gone before the lease is, even if its guard is frozen and cronlock was waiting between two tries."""
    script = "trap '' TERM; echo $$ >$T/pid.new; mv $T/pid.new $T/pid; while :; do sleep 0.01; done"
    running = start("--ttl", "3s", "job", "sh", "-c", script, backend=own_redis.url())
    until((tmp_path / "pid").exists)
    command = int((tmp_path / "pid").read_text())
    os.kill(running.guard, signal.SIGSTOP)
    asked = time.monotonic()
    os.kill(own_redis.pid, signal.SIGSTOP)
    until(lambda: not alive(command))
    assert time.monotonic() - asked < 3.0
    os.kill(own_redis.pid, signal.SIGCONT)
    assert running.end()[0] == 76


def test_that_it_is_being_stopped_is_said_before_that_it_has_ended(tmp_path: Path) -> None:
    """A frozen guard was told of a TERM and then killed; on a busy machine the command was dead before cronlock, which had taken
    it over, had said that it is stopping the tree: so the lock was released, and a helper that ignores TERM acted on beside
    the next run."""
    up = tmp_path / "up"
    helper = tmp_path / "helper"
    helper.write_text(f"trap '' TERM\ntouch {up}\nsleep 60\n")
    said = with_guard(
        f"""
keeper = start("trap 'exit 7' TERM; setsid sh {helper} & wait; wait")
until(lambda: hear(keeper, "started") and os.path.exists("{up}"))
os.kill(keeper.pid, signal.SIGSTOP)
keeper.pass_on(signal.SIGTERM)
looked = guard.tree.descendants
guard.tree.descendants = lambda root: time.sleep(0.3) or looked(root)
keeper.kill()
until(lambda: hear(keeper, "gone"))
"""
    )
    assert said[1:] == ["stopping signal", f"ended {7 << 8}", "gone"]


SILENT = """
import os, sys, time
from cronlock import clock, run
from cronlock.errors import BackendError, LeaseLost
from cronlock.model import Job

class Store:
    where, timeout, warnings, fds, watch_fd, valid_for, previous = "silent:", 1.0, [], (), None, 2.0, None

    def try_acquire(self, grant, until):
        self.run = grant.run
        return self

    def renew(self, until):
        '''No answer, until the command has ended (ENDS), and then until it is too late for another try.'''
        open(sys.argv[1], "w").close()
        with open("/proc/thread-self/children") as file:
            guard = file.read().strip()
        while ENDS and os.path.exists(f"/proc/{guard}/comm") and open(f"/proc/{guard}/stat").read().split()[2] != "Z":
            time.sleep(0.01)
        time.sleep(2.0)
        raise ANSWER

    def regain(self, until):
        raise ANSWER

    def release(self, run, until):
        print("released as", run.outcome)

command = ("sh", "-c", 'until [ -e "$0" ]; do sleep .01; done; exit 7', sys.argv[1] if ENDS else "/nowhere")
trouble = lambda event: event.level == "trouble" and print(event.text)
outcome = run.run(Job("job", command, environ=dict(os.environ), ttl=2.0, MORE), Store(), trouble)
print(outcome.word, outcome.code)
"""


@pytest.mark.parametrize(
    ("answer", "more", "otherwise"),
    [
        ("BackendError('away')", "on_lost='terminate'", "lost"),
        ("LeaseLost('gone')", "on_lost='terminate'", "lost"),
        ("BackendError('away')", "max_runtime=1.0, on_lost='continue'", "timed-out"),
    ],
)
def test_a_command_that_ends_by_itself_while_the_store_is_silent(answer: str, more: str, otherwise: str, tmp_path: Path) -> None:
    """The lock was still its own. It was reported as stopped for a lock that got lost, or for its limit, only
    because cronlock was then still waiting for an answer."""

    def ran(ends: bool) -> list[str]:
        script = SILENT.replace("ENDS", str(ends)).replace("MORE", more).replace("ANSWER", answer)
        done = subprocess.run([sys.executable, "-c", script, str(tmp_path / str(ends))], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    assert ran(ends=True) == ["released as failed", "failed 7"]
    assert ran(ends=False)[-1].split()[0] == otherwise


SLOW = """
import os, time
from cronlock import run
from cronlock.errors import BackendError
from cronlock.model import Job

class Store:
    where, timeout, warnings, fds, watch_fd, valid_for, previous = "slow:", 10.0, [], (), None, 4.0, None

    def try_acquire(self, grant, until):
        self.run = grant.run
        time.sleep(2.7)
        return self

    def renew(self, until):
        time.sleep(0.4)
        RENEWED

    def abandon(self, grant, until):
        print("abandoned")

    def release(self, run, until):
        print("released")

job = Job("job", ("echo", "runs"), environ=dict(os.environ), ttl=4.0, on_unavailable="skip")
print(run.run(job, Store(), lambda event: print(event.text) if event.level == "trouble" else None).word)
"""


@pytest.mark.parametrize(("renewed", "then"), [("", "runs released ok"), ("raise BackendError('away')", "abandoned unavailable")])
def test_a_grant_that_was_long_under_way_is_renewed_before_the_command_starts(renewed: str, then: str) -> None:
    """An NFS server in its grace period gave the lock 5.5 s after it was asked, with a ttl of 8 s, of which the last 2.4 are for
    stopping: the command was stopped as it started."""
    script = SLOW.replace("RENEWED", renewed)
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60).stdout.split() == then.split()


def test_waiters_that_are_frozen_keep_nobody_out(own_postgresql: Postgres, start: Callable[..., Started], tmp_path: Path) -> None:
    """The server gives the advisory lock to the next in its queue, asleep or not: each of them kept it for a ttl."""
    url, go = own_postgresql.url(), tmp_path / "over"
    holder = start("--ttl", "8s", "job", "sh", "-c", ': >"$0.in"; until [ -e "$0" ]; do sleep .02; done', str(go), backend=url)
    until((tmp_path / "over.in").exists)
    with own_postgresql.admin() as admin:

        def queued() -> int:
            row = admin.execute("select count(*) from pg_locks where locktype = 'advisory' and not granted").fetchone()
            return row[0] if row else 0

        waiters = []
        for number in range(1, 4):
            waiters.append(start("--wait", "60s", "--ttl", "8s", "job", "true", backend=url))
            until(lambda number=number: queued() == number)
        for frozen in waiters[:2]:
            os.kill(frozen.pid, signal.SIGSTOP)
        began = time.monotonic()
        go.touch()
        assert waiters[2].end()[0] == 0
        took = time.monotonic() - began
        print(f"two waiters frozen: the third ran after {took:.1f} s")
        assert took < 8
    assert holder.end()[0] == 0


TIME_WAIT = "06"  # in /proc/net/tcp
CUT = """
import sys
from cronlock import clock, registry
from cronlock.errors import BackendError
from cronlock.testing import grant, held, finished

holder, waiter = (registry.open_backend(sys.argv[1]) for _ in "ab")
lease = held(holder, "chaos")
asked = grant("chaos", ttl=60)
waiter.try_acquire(asked, clock.now() + 5)
lease.release(finished(lease), clock.now() + 5)
print("cut", flush=True)
sys.stdin.readline()
try:
    waiter.try_acquire(asked, clock.now() + 0.5)
except BackendError as error:
    waiter.abandon(asked, clock.now() + 0.1)
    waiter.close()
    print(error)
"""


@pytest.mark.root
@pytest.mark.parametrize("kind", ["postgresql", "redis"])
def test_a_claim_that_was_given_up_does_not_arrive_later(kind: str) -> None:
    """It was sent into a network that was cut. The kernel sent it again when that was back, the process long gone: granted to nobody."""
    if why := hosts.missing():
        unusable(why)
    store = stores.STORES[kind]()
    try:
        assert store.network
        command = [*store.network.inside(1), sys.executable, "-c", CUT, store.url]
        client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert client.stdout and client.stdout.readline() == "cut\n"
        store.network.cut(1)
        assert client.communicate("\n", timeout=30)[0].startswith(kind)  # it says why
        store.network.heal(1)
        connections = Path(f"/proc/{store.network.hosts[1].pid}/net/tcp")
        until(lambda: all(line.split()[3] in ("st", TIME_WAIT) for line in connections.read_text().splitlines()))
        assert store.grant([]) is None
    finally:
        store.destroy()
