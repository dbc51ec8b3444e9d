"""`cronlockctl release`: take a lock away from its holder, which ends as `lost` and never regains it."""

from __future__ import annotations

import os
import time

from cronlock import clock, exits, tree
from cronlock.ctl.status import look
from cronlock.ctl.table import printable, span
from cronlock.lean import signal
from cronlock.local import username
from cronlock.model import Run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cronlock.model import Status
    from cronlock.protocol import Backend

NOTICE = 5.0  # seconds in which the holder of a file lock should have seen that it was taken away


def holder(backend: Backend, name: str) -> tuple[Run | None, str]:
    """Who would lose it, and the question to ask; without a run, why there is nothing to release."""
    one = look(backend, name)
    run = one.holder
    if one.state == "kept":
        return None, f"{name} is not held, only kept by --min-hold until {clock.stamp(one.kept_until or 0.0)}"
    if one.state == "released" and run:
        return None, f"{name} was released by {run.user} on {run.host} already; its holder is stopping"
    if one.state != "held":
        return None, f"{name} is not held"
    if run is None:
        return None, f"{name} is held by something else ({one.detail or 'another tool'}), which has to let go itself"
    usually = f", usually {span(one.usual.median)}" if one.usual else ""
    who = f"{run.host}, pid {run.pid}, user {run.user}, command {run.command}"
    return run, printable(f"{name} is held by {who}, since {clock.stamp(run.start)} ({span(one.now - run.start)}{usually})")


def release(backend: Backend, name: str, run: Run) -> str:
    """Do it; what to tell the operator. LeaseLost: that run does not hold it any more."""
    lost = run.but(outcome="lost", status=exits.LOST, end=clock.wall())
    backend.seize(name, lost, operator(), clock.now() + backend.timeout)
    here = run.host == os.uname().nodename and _process(run)
    if here and here.state == "T":
        tree.send(here, signal.SIGCONT)  # or it would never look
    status = backend.status(name, clock.now() + backend.timeout)
    if status.ttl_left is not None:
        return f"taken away: the command is stopped at the holder's next look, others can start in {span(status.ttl_left)} at the latest"
    if status.detail:
        return "taken away: the command is stopped at the holder's next look; this file system does not tell when it has let go"
    if _let_go(backend, name, clock.now() + NOTICE):
        return "taken away: the holder has let go"
    if run.host != os.uname().nodename:
        return f"taken away on record, but the kernel's lock is still held: stop pid {run.pid} on {run.host}"
    if not here or not tree.send(here, signal.SIGTERM):
        return f"taken away on record, but the kernel's lock is still held, and pid {run.pid} is gone: lsof finds who has the file open"
    gone = _let_go(backend, name, clock.now() + NOTICE)
    return f"taken away: TERM was sent to pid {run.pid}" + (", which has let go" if gone else ", which has not let go yet")


def _process(run: Run) -> tree.Process | None:
    """The holder, unless another process has its number by now."""
    process = tree.look(run.pid)
    age = clock.now() - process.started / os.sysconf("SC_CLK_TCK") if process else 0.0
    return process if process and clock.wall() - age < run.start + 2 else None


def _let_go(backend: Backend, name: str, until: float) -> bool:
    while _held(backend.status(name, until + backend.timeout)):
        if clock.now() >= until:
            return False
        time.sleep(0.1)
    return True


def _held(status: Status) -> bool:
    return status.held and bool(status.run and status.run.outcome == "released")


def operator() -> Run:
    """Who takes it, as a grant that nobody regains from. Its outcome says what it is."""
    token, run_id, now = os.urandom(16).hex(), os.urandom(4).hex(), clock.wall()
    return Run(run_id, token, os.uname().nodename, os.getpid(), username(), "cronlockctl", now, outcome="released", end=now)
