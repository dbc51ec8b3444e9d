"""Contenders and faults.

Strictly, at most one of a run's two keepers (cronlock, guard) is out of order at a time: who kills or freezes both
leaves nobody who could stop the command (docs/guarantees.md). `windows=True` adds what that page says may overlap:
both keepers killed, both frozen, a Redis that forgets everything; the judge tells these apart.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import IO, NamedTuple

from chaos import judge
from chaos import stores as places

CRONLOCK = str(Path(sys.executable).with_name("cronlock"))
JOB = str(Path(__file__).with_name("job.py"))
KINDS = ("plain", "plain", "stubborn", "forks", "setsid", "daemon")
WEIGHTS = {
    "kill-cronlock": 3,
    "kill-guard": 3,
    "kill-command": 2,
    "term-cronlock": 2,
    "freeze-cronlock": 4,
    "freeze-guard": 4,
    "freeze-command": 2,
    "restart": 1,
    "crash": 2,
    "freeze-server": 2,
    "disconnect": 1,
    "cut": 3,
    "both-killed": 3,
    "both-frozen": 3,
    "emptied": 3,
}
TREE = ("kill-cronlock", "kill-guard", "kill-command", "term-cronlock", "freeze-cronlock", "freeze-guard", "freeze-command")
KEEPERS = ("both-killed", "both-frozen")
PATIENCE = 40  # tries, 50 ms each, to find whom a fault could hit
REST = 1.0  # seconds between two faults of one run's keepers, so that the first is over


class Result(NamedTuple):
    backend: str
    seed: int
    ttl: float
    seconds: float
    faults: list[judge.Fault]
    runs: list[judge.Acts]
    overlaps: list[judge.Overlap]
    backward: int  # neighbours whose fence did not grow
    gaps: list[judge.Gap]
    holds: list[judge.Hold]
    statuses: Counter[int]
    network: bool
    left: list[str]  # processes that were still there at the end
    directory: str  # with records and messages; empty when there was nothing to look at
    slow: list[judge.Gap]  # those that took longer than they may


class Slot:
    """One host's crontab line, fired again as soon as it has ended."""

    def __init__(self, number: int, directory: Path) -> None:
        self.number, self.name = number, f"s{number}"
        self.said: IO[bytes] = (directory / f"said-{number}").open("ab")
        self.process: subprocess.Popen[bytes] | None = None
        self.again = 0.0
        self.born = 0  # when the present cronlock was started
        self.quiet_until = 0.0
        self.one_keeper = False  # the other one was killed
        self.frozen: set[str] = set()

    def guard(self) -> int:
        """The guard's pid; 0: there is none (now or any more)."""
        return next((pid for pid in children(self.pid) if comm(pid) == "cronlock-guard"), 0)

    @property
    def pid(self) -> int:
        return self.process.pid if self.process and self.process.returncode is None else 0

    def command(self) -> list[int]:
        """The command and all that came of it."""
        guard = self.guard()
        return descendants(guard) if guard else [pid for pid in descendants(self.pid) if comm(pid) != "cronlock"]


class Watch(threading.Thread):
    """Whom the store has as the holder, asked all the time, past the network that is cut."""

    def __init__(self, store: places.Store, slots: dict[int, str]) -> None:
        super().__init__(daemon=True)
        self._store, self._slots = store, slots
        self._over = threading.Event()
        self.holds: list[judge.Hold] = []
        self.start()

    def run(self) -> None:
        while not self._over.wait(0.02):
            asked = time.monotonic_ns()
            grant = self._store.grant(list(self._slots))
            if grant is None or grant[1] not in self._slots:
                continue
            hold = judge.Hold(self._slots[grant[1]], grant[0], asked, time.monotonic_ns())
            if self.holds and self.holds[-1].grant == hold.grant:
                self.holds[-1] = self.holds[-1]._replace(until=hold.until)
            else:
                self.holds.append(hold)

    def end(self) -> None:
        self._over.set()
        self.join()


class Chaos:
    def __init__(self, backend: str, *, seed: int = 0, ttl: float = 3.0, slots: int = 6, windows: bool = False) -> None:
        self.backend, self.seed, self.ttl, self.windows = backend, seed, ttl, windows
        self.random = random.Random(seed)
        self.directory = Path(tempfile.mkdtemp(prefix="cl-chaos-run-"))
        self.record = self.directory / "record"
        self.record.touch()
        self.faults: list[judge.Fault] = []
        self.statuses: Counter[int] = Counter()
        self.store = places.STORES[backend]()
        self.slots = [Slot(number, self.directory) for number in range(slots)]
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._next, self._tries = "", 0  # the fault that is to be injected
        self._down = False  # the store, for whatever reason
        self._store_rests = 0.0  # until then: time to run must be left
        self._cut: set[int] = set()
        self._started: dict[int, str] = {}  # pid: slot
        self._watch = Watch(self.store, self._started)

    def run(self, faults: int, seconds: float = float("inf"), *, say: Callable[[str], None] = lambda _: None) -> Result:
        """Until so many faults were injected or the time is over; then everything is mended and ends."""
        began = time.monotonic()
        next_fault = began + 1.0
        try:
            try:
                while len(self.faults) < faults and time.monotonic() - began < seconds:
                    self._turn()
                    if time.monotonic() >= next_fault:
                        done = self._inject()
                        next_fault = time.monotonic() + (self.random.uniform(0.2, 1.0) if done else 0.05)
                        if done and len(self.faults) % 50 == 0:
                            say(f"{self.backend}: {len(self.faults)} faults, {time.monotonic() - began:.0f} s")
                last = time.monotonic_ns()
                self._mend()
                end = time.monotonic() + 2 * self.ttl + 2  # a last run for everybody who can
                while time.monotonic() < end:
                    self._turn()
            finally:
                left = self._end()
                self._watch.end()
        finally:
            self.store.destroy()
        return self._judged(time.monotonic() - began, last, left)

    def _judged(self, seconds: float, last: int, left: list[str]) -> Result:
        with self.record.open() as file:
            runs = judge.read(file)
        found = judge.overlaps(runs, self.faults, min(1.0, self.ttl / 4))
        backward = len(judge.overlap.backward_fences([acts.run for acts in runs]))
        gaps = judge.gaps(runs, self.faults, self.store.blocking, last, self._watch.holds, places.NETWORKS)
        slow = [gap for gap in gaps if gap.recovery > self.ttl + 1 + gap.idle * self.store.idle]
        clean = not any(not o.window for o in found) and not backward and not left and not slow
        if clean:
            shutil.rmtree(self.directory)
        else:
            (self.directory / "faults").write_text("".join(f"{f}\n" for f in self.faults))
            (self.directory / "holds").write_text("".join(f"{h}\n" for h in self._watch.holds))
        network = self.store.network is not None
        directory = "" if clean else str(self.directory)
        return Result(
            *(self.backend, self.seed, self.ttl, seconds, self.faults, runs, found, backward, gaps, self._watch.holds),
            *(self.statuses, network, left, directory, slow),
        )

    # -- contenders

    def _turn(self) -> None:
        now = time.monotonic()
        while self._later and self._later[0][0] <= now:
            heapq.heappop(self._later)[2]()
        for slot in self.slots:
            if slot.process and (status := slot.process.poll()) is not None:
                self.statuses[status] += 1
                slot.process, slot.again = None, now + self.random.choice((0.0, 0.05, 0.3))
                slot.one_keeper = False
            if not slot.process and now >= slot.again and slot.name not in slot.frozen:
                self._start(slot)
        time.sleep(0.01)

    def _start(self, slot: Slot) -> None:
        most = self.random.choices((1.0, self.ttl, 2.5 * self.ttl), (6, 3, 1))[0]
        seconds = self.random.uniform(0.2, most)
        wait = self.random.choice(("0", "5s", "20s", "20s", "20s"))
        inside = self.store.network.inside(slot.number) if self.store.network else []
        options = ["-b", self.store.url, "--ttl", f"{self.ttl}s", "--kill-after", "1s", "--wait", wait, "-v"]
        command = [sys.executable, "-I", "-S", JOB, str(self.record), self.random.choice(KINDS), f"{seconds:.2f}"]
        environ = {k: v for k, v in os.environ.items() if not k.startswith("CRONLOCK_")} | {"SLOT": slot.name}
        slot.said.write(f"--- {time.monotonic_ns()}\n".encode())
        slot.said.flush()
        slot.born = time.monotonic_ns()
        slot.process = subprocess.Popen(
            [*inside, CRONLOCK, *options, places.NAME, *command],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=slot.said,
            start_new_session=True,
        )
        self._started[slot.process.pid] = slot.name

    # -- faults

    def _inject(self) -> bool:
        """One fault, if there is whom it could hit just now."""
        if self._next and self._tries < PATIENCE:
            self._tries += 1
        else:
            self._next, self._tries = self._draw(), 0
        kind = self._next
        done = self._cut_off() if kind == "cut" else self._hit_tree(kind) if kind in (*TREE, *KEEPERS) else self._hit_store(kind)
        if done:
            self._next = ""
        return done

    def _draw(self) -> str:
        cuts = ["cut"] if self.store.network else []
        named = [*KEEPERS, *self.store.windows] if self.windows else []
        kinds = [*TREE, *self.store.faults, *cuts, *named]
        return self.random.choices(kinds, [WEIGHTS[kind] for kind in kinds])[0]

    def _log(self, kind: str, slot: str, seconds: float = 0.0) -> None:
        now = time.monotonic_ns()
        self.faults.append(judge.Fault(kind, slot, now, now + int(seconds * 1e9)))

    def _over(self, fault: judge.Fault) -> None:
        """It lasted until now: what was planned, and this machine's delays."""
        self.faults[self.faults.index(fault)] = fault._replace(until=time.monotonic_ns())

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._later, (time.monotonic() + seconds, len(self.faults), act))

    def _length(self) -> float:
        return self.random.uniform(0.05, self.random.choice((0.5, 2)) * self.ttl)

    def _hit_tree(self, kind: str) -> bool:
        victim, what = kind, kind.rpartition("-")[2]
        holders = [slot for slot in self.slots if slot.guard()]
        waiters = [slot for slot in self.slots if slot.pid and slot not in holders]
        chosen = holders if what != "cronlock" or self.random.random() < 0.75 else waiters
        if not chosen:
            return False
        slot = self.random.choice(chosen)
        now = time.monotonic()
        if kind not in ("kill-command", "freeze-command", "term-cronlock") and (slot.one_keeper or now < slot.quiet_until):
            return False
        guard, command = slot.guard(), slot.command()
        pids = {"cronlock": [slot.pid], "guard": [guard], "command": command}.get(what, [slot.pid, guard])
        if not all(pids) or not pids or (slot in holders and not command):
            return False
        if kind in KEEPERS and not self._has_acted(slot):  # the judge could not tell this run from the slot's next one
            return False
        if kind == "kill-command":  # helpers that outlived it would be daemons, which are let go
            stop_all(slot.command)
            pids = slot.command()
        self._log(kind, slot.name)
        if victim.startswith("freeze") or kind == "both-frozen":
            self._freeze(kind, slot, pids)
            return True
        if kind in ("kill-guard", "both-killed"):
            slot.one_keeper = True
        if kind == "both-killed":  # the guard first, or it would stop the tree
            pids.reverse()
        for pid in reversed(pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM if kind == "term-cronlock" else signal.SIGKILL)
        return True

    def _has_acted(self, slot: Slot) -> bool:
        lines = (line.split() for line in self.record.read_text().splitlines())
        return any(line[0] == "start" and line[3] == slot.name and int(line[1]) > slot.born for line in lines)

    def _freeze(self, kind: str, slot: Slot, pids: list[int]) -> None:
        seconds = self._length()
        fds = []
        for pid in pids:
            with contextlib.suppress(OSError):
                fd = os.pidfd_open(pid)
                signal.pidfd_send_signal(fd, signal.SIGSTOP)
                fds.append(fd)
        fault = self.faults[-1]._replace(until=time.monotonic_ns() + int(seconds * 1e9))
        self.faults[-1] = fault
        if not kind.endswith("command"):
            slot.quiet_until = time.monotonic() + seconds + REST

        def thaw() -> None:
            for fd in fds:
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(fd, signal.SIGCONT)
                os.close(fd)
            self._over(fault)
            if not kind.endswith("command"):
                slot.quiet_until = time.monotonic() + REST

        self._after(seconds, thaw)

    def _hit_store(self, kind: str) -> bool:
        if self._down or time.monotonic() < self._store_rests:
            return False
        store = self.store
        if kind == "disconnect":
            self._log(kind, "")
            store.disconnect()
            return True
        seconds = self._length() if kind == "freeze-server" or self.random.random() < 0.3 else 0.0
        self._log(kind, "", seconds)
        fault = self.faults[-1]
        if kind == "freeze-server":
            store.freeze()
        else:
            store.stop(kind)
        self._down = True

        def up() -> None:
            if kind == "freeze-server":
                store.thaw()
            else:
                store.start()
            self._down = False
            self._store_rests = time.monotonic() + self.random.choice((0.0, self.ttl, 2 * self.ttl))
            self._over(fault)

        self._after(seconds, up)
        return True

    def _cut_off(self) -> bool:
        network = self.store.network
        number = self.random.randrange(places.NETWORKS)
        holding = {slot.number % places.NETWORKS for slot in self.slots if slot.guard()} - self._cut
        if holding and self.random.random() < 0.7:
            number = self.random.choice(sorted(holding))
        if network is None or number in self._cut or len(self._cut) == places.NETWORKS - 1:
            return False
        seconds = self._length()
        self._log("cut", f"h{number}", seconds)
        fault = self.faults[-1]
        network.cut(number)
        self._cut.add(number)

        def heal() -> None:
            network.heal(number)
            self._cut.discard(number)
            self._over(fault)

        self._after(seconds, heal)
        return True

    # -- the end

    def _mend(self) -> None:
        while self._later:
            heapq.heappop(self._later)[2]()

    def _end(self) -> list[str]:
        """Everybody is told to end, then made to; what nobody told us of is named."""
        self._mend()
        running = [slot for slot in self.slots if slot.pid]
        for slot in running:
            os.kill(slot.pid, signal.SIGTERM)
        deadline = time.monotonic() + 15
        for slot in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                slot.process.wait(max(0.1, deadline - time.monotonic()))
        left = []
        end = time.monotonic() + 5
        while (pids := self._mine()) and time.monotonic() < end:
            time.sleep(0.05)
        for pid in pids:
            left.append(f"{pid} {cmdline(pid)}")
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
                os.kill(pid, signal.SIGKILL)
        for slot in running:
            slot.process.wait(10)
        for slot in self.slots:
            slot.said.close()
        return left

    def _mine(self) -> list[int]:
        """Whoever works on our record: contenders, guards (named by nothing but their command) and jobs."""
        return [
            pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if pid != os.getpid() and str(self.record) in cmdline(pid)
        ]


def stop_all(living: Callable[[], list[int]]) -> None:
    for _ in range(5):
        running = [pid for pid in living() if state(pid) not in "TtZX"]
        for pid in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        if not running:
            return
        select.select([], [], [], 0.002)


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()] if pid else []
    except OSError:
        return []


def descendants(pid: int) -> list[int]:
    found = [child for child in children(pid) if state(child) not in "ZX"]
    return found + [other for child in found for other in descendants(child)]


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def cmdline(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
