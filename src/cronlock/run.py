"""One run, top to bottom: signals, acquire, guard, keep, release. Knows no backend and no exit status."""

from __future__ import annotations

import errno
import os
import select
import time

from cronlock import clock, durations, exits
from cronlock.errors import UNANSWERED, BackendError, CronlockError, Interrupted, LeaseLost, UsageError
from cronlock.guard import FOREVER, Guard, Orders, cannot_start, first_that_starts
from cronlock.lean import signal, suppress
from cronlock.lease import INF, Keeping
from cronlock.local import crowded, username
from cronlock.model import Busy, Done, Event, Grant, Job, Outcome, Run
from cronlock.observers import of_waiting
from cronlock.signals import Signals
from cronlock.usual import LEAST, usual

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import NoReturn

    from cronlock.guard import Validity
    from cronlock.protocol import Backend, Lease
    from cronlock.tail import Tail

    Observe = Callable[[Event], None]

CLEAN_UP = 0.1  # of the backend's time-out is kept for taking back what an unanswered attempt may have got
RELEASE = 5.0  # seconds a release is tried; then the ttl does it
ANSWER = 2.0  # seconds the guard has to say that it is stopping the tree, before it is taken for frozen
CROWDED = 5  # times the backend's time-out: for so long a start goes on asking on a host that is crowded
CLIENTS = ("docker", "podman", "nerdctl", "kubectl", "ssh")  # moby/moby#35703: exec clients pass no signal on
POLL = 0.2  # seconds between tries when a store that answered before is away while we wait


def run(job: Job, backend: Backend, observe: Observe, tail: Tail | None = None) -> Outcome:
    """Take the lock, run the command, release. Errors that a person must mend come out as CronlockError."""
    with Signals() as signals:
        grant = Grant(job.name, new_run(job), job.ttl, job.min_hold, job.retry_failed)
        try:
            if job.jitter or job.standby:
                with signals.interruptible():
                    time.sleep(random_part(job.jitter) + job.standby)
            answer, asked = acquire(job, grant, backend, signals, observe)
            if isinstance(answer, (Busy, Done)):
                return Outcome("busy" if isinstance(answer, Busy) else "done", answer=answer)
            keeping = fresh(Keeping(answer, asked, job.ttl, job.kill_after), asked, grant, backend, signals)
        except Interrupted as signalled:
            return Outcome("interrupted", signal=signalled.signum)
        except BackendError as error:
            if job.on_unavailable == "fail":
                raise
            if job.on_unavailable == "skip":
                return Outcome("unavailable", code=job.conflict_code, detail=str(error))
            observe(Event("unavailable", "warning", f"{error}; running without a lock (--on-unavailable run)"))
            return Supervision(job, None, signals, observe, backend, grant.run.run_id, tail).whole()
        heed(backend, observe)
        told = {"run_id": answer.run.run_id, "fence": answer.run.fence}
        observe(Event("acquired", "info", f"holding the lock, fence {answer.run.fence}", told))
        if signals.received:  # between the grant and the spawn
            outcome = Outcome("interrupted", signal=signals.received[0])
            backend.abandon(grant, clock.now() + RELEASE)
            return outcome
        if job.no_fork:
            if keeping.lease.valid_for < INF:  # a flock: directory that lies on a network file system, which only the store knows
                backend.abandon(grant, clock.now() + RELEASE)
                raise UsageError(f"-F works with local file locks only: that of {job.name!r} is on a network, so cronlock has to stay")
            become(job, answer, signals, backend.where)
        try:
            return Supervision(job, keeping, signals, observe, backend, grant.run.run_id, tail).whole()
        finally:
            heed(backend, observe)


def heed(backend: Backend, observe: Observe) -> None:
    """Say what the backend wants said."""
    while backend.warnings:
        observe(Event("backend", "warning", backend.warnings.pop(0)))


def acquire(job: Job, grant: Grant, backend: Backend, signals: Signals, observe: Observe) -> tuple[Lease | Busy | Done, float]:
    """Ask once, or until `job.wait` is over; the answer, and the instant before it was asked for."""
    began = clock.now()
    until = began + min(job.wait, max(0.0, job.period_end - clock.wall()))
    waited = False
    heard: float | None = None  # when the store last answered
    first: float | None = None  # before the first try that got no answer: it may have got the lock all the same, and a later one meets it
    while True:
        asked = clock.now()
        grant = grant.but(run=grant.run.but(start=clock.wall()))  # what it takes, and whether that is usual, counts no waiting
        try:
            with signals.interruptible():
                answer = backend.try_acquire(grant, asked + backend.timeout * (1 - CLEAN_UP))
                heard = clock.now()
                if not isinstance(answer, Busy):
                    return answer, asked if first is None else first
                if _is_ancestor(answer, job.environ):
                    ancestor = f"the holder is an ancestor of this process (pid {_pid(answer)})"
                    observe(Event("busy", "trouble", f"{ancestor}: the same name is nested in itself"))
                    return answer, asked
                if clock.now() >= until:
                    return answer, asked
                if not waited:
                    observe(of_waiting(answer, clock.left(until)))
                waited = True
                backend.wait(job.name, until)
        except Interrupted:
            backend.abandon(grant, clock.now() + RELEASE)
            raise
        except BackendError:
            first = asked if first is None else first
            backend.abandon(grant, asked + backend.timeout)
            over = heard is None or clock.now() >= min(until, heard + backend.timeout)
            if over and not (clock.now() < began + CROWDED * backend.timeout and crowded()):
                raise
            time.sleep(POLL)


def fresh(keeping: Keeping, asked: float, grant: Grant, backend: Backend, signals: Signals) -> Keeping:
    """A grant that was long under way is renewed first, or the command would be stopped as soon as it runs. BackendError if it isn't."""
    try:
        with signals.interruptible():
            if not keeping.fit_to_start(max(asked + backend.timeout, clock.now() + POLL)):
                late = "the grant took so long that it had to be renewed before the command could start, and was not"
                raise BackendError(f"{backend.where}: {late}: {keeping.unanswered or 'it had run out'}")
    except (Interrupted, BackendError):
        backend.abandon(grant, clock.now() + RELEASE)
        raise
    return keeping


class Supervision:
    """The command is running: cronlock keeps the lease, the guard the command, and this is the loop between them."""

    def __init__(
        self, job: Job, keeping: Keeping | None, signals: Signals, observe: Observe, backend: Backend, run_id: str, tail: Tail | None
    ) -> None:
        self._job, self._keeping, self._signals, self._observe, self._backend = job, keeping, signals, observe, backend
        self._run_id, self._tail = run_id, tail
        self._started = clock.now()
        self._limit = self._started + job.max_runtime if job.max_runtime else INF
        self._warn_at = self._started + job.warn_after if job.warn_after else INF
        self._ask_at = self._started + LEAST if job.warn_after is None and keeping else INF  # what is usual: no short run pays for it
        self._ended: int | None = None  # wait status of the direct child
        self._by_itself = False  # it ended before the guard began to stop it
        self._usually = ""
        self._gone = False  # the whole tree, after a stop
        self._failed = 0  # errno of a command that could not be started
        self._why = ""  # why it is being stopped: signal, timed-out, lost
        self._stopping = False  # the guard has begun to
        self._answer_by = INF  # when the guard, told to stop, must have said that it does
        self._lost = ""
        self._fds: tuple[int, ...] = ()

    def whole(self) -> Outcome:
        """Spawn, keep, release. An error nobody expected releases nothing: this process ends, the guard stops the
        tree, and only then does the lock go, by its descriptors or its ttl."""
        lease = self._keeping.lease if self._keeping else None
        environ = environment(self._job, lease.run if lease else None, self._backend.where)
        fds = lease.fds if lease else ()
        orders = Orders(self._job.command, environ, self._signals.mask, fds, self._job.kill_after, self._validity())
        if self._tail:
            orders = orders.but(streams=self._tail.open())
        try:
            self._guard = Guard.start(orders)
        except OSError as refused:
            self._failed = refused.errno or errno.EAGAIN
        else:
            if self._tail:
                self._tail.start()  # threads: not before the fork
            self._signals.deliver_to(self._pass_on)
            self._loop()
        error = cannot_start(self._job.command, self._job.environ, self._failed) if self._failed else None
        outcome = Outcome("failed", error.code) if error else self._outcome()
        if lease:
            self._release(lease, outcome)
        if self._tail:
            self._tail.drain()
        if error:
            raise error
        return outcome

    def _loop(self) -> None:
        poll = select.poll()
        while not self._finished():
            watched = self._watch(poll)
            ready = {fd for fd, _ in poll.poll(self._wait() * 1000)}
            now = clock.now()
            if self._signals.fd in ready:
                self._signals.clear()
            if self._over():
                return
            if self._keeping:
                if now >= self._keeping.due() or watched in ready:
                    self._renew(self._keeping)
                elif self._keeping.expired() and not self._lost:  # between two tries, and the guard, which should have said so, is frozen
                    self._lose(f"no answer in time: {self._keeping.unanswered or 'none'}", self._keeping.grace)
            if now >= self._limit and not self._why:
                self._stop("timed-out", self._job.kill_after)
            if now >= self._ask_at:
                self._ask_at, self._warn_at = INF, self._started + self._usual_limit()
            if now >= self._warn_at:
                self._warn_at = INF
                took = durations.show(round(now - self._started, 1))
                told = {"took": round(now - self._started, 3), "run_id": self._run_id}
                self._observe(Event("overdue", "warning", f"still running after {took}{self._usually}", told))
            if now >= self._answer_by:  # it was told to stop and says nothing: frozen
                self._answer_by = INF
                self._guard.kill()

    def _over(self) -> bool:
        """With what the guard has said by now: while the store is asked, the command may end by itself."""
        for message in self._guard.messages():
            self._hear(message)
        return self._finished()

    def _finished(self) -> bool:
        return self._failed != 0 or (self._gone if self._why else self._ended is not None)

    def _wait(self) -> float:
        due = [
            self._guard.wait(),
            min(self._limit, self._ask_at, self._warn_at) - clock.now(),
            self._answer_by - clock.now(),
        ]
        if self._keeping:
            due.append(self._keeping.due() - clock.now())
            if not self._lost:
                due.append(self._keeping.deadline - self._keeping.grace - clock.now())
        return max(0.0, min(due))

    def _usual_limit(self) -> float:
        """Seconds that are out of the ordinary. The store is asked once, and for no longer than the lease can bear."""
        left = self._keeping.deadline - self._keeping.grace - clock.now() if self._keeping else 0.0
        try:
            known = usual(self._backend.history(self._job.name, clock.now() + min(2.0, left / 4)))
        except CronlockError:
            return INF
        if known is None or known.limit is None:
            return INF
        self._usually = f", usually {durations.show(round(known.median, 1))} (--warn-after)"
        return known.limit

    def _watch(self, poll: select.poll) -> int | None:
        """Exactly what there is to watch now: a reconnect changes it."""
        watched = self._keeping.lease.watch_fd if self._keeping and not self._lost else None
        wanted = tuple(fd for fd in (self._signals.fd, self._guard.fd, -1 if watched is None else watched) if fd >= 0)
        if wanted != self._fds:
            for fd in self._fds:
                poll.unregister(fd)
            for fd in wanted:
                poll.register(fd, select.POLLIN)
            self._fds = wanted
        return watched

    def _hear(self, message: str) -> None:
        word, _, rest = message.partition(" ")
        if word == "started":
            self._observe(Event("started", "info", f"the command runs, pid {rest}", {"command_pid": int(rest), "run_id": self._run_id}))
        elif word == "ended":
            self._ended, self._by_itself = int(rest), not self._stopping
            self._observe(Event("ended", "info", "the command has ended", {"run_id": self._run_id}))
        elif word == "gone":
            self._gone = True
        elif word == "failed":
            self._failed = int(rest)
        elif word == "stopping":
            self._answer_by, self._stopping = INF, True
            if rest == "expired":
                self._lose("the lease ran out before it could be renewed", 0.0)
            self._why = self._why or ("signal" if rest == "signal" else "lost")
        elif word == "stuck":
            self._observe(Event("stuck", "trouble", f"still alive after KILL, so the lock is kept as long as can be: pid {rest}"))

    def _renew(self, keeping: Keeping) -> None:
        before = _open_files(keeping.lease.fds)
        trouble = keeping.unanswered
        try:
            renewed = keeping.turn()
        except LeaseLost as error:
            if not self._over():
                self._lose(str(error), keeping.grace)
            return
        if renewed:
            replaced = _open_files(keeping.lease.fds) != before
            if replaced:
                self._guard.hold(keeping.lease.fds)
            self._guard.valid(*self._validity())
            if keeping.regained:
                self._observe(Event("regained", "warning", "the lock was gone for a moment and is held again; nobody else had it"))
            elif trouble:
                self._observe(Event("renewed", "warning", "the store answers again; the lock was held all the time"))
            elif replaced and before:
                cut = "the connection that carried the lock was cut, and the lock is held again; nobody else had it"
                self._observe(Event("regained", "warning", cut))
        elif self._over():
            return
        elif keeping.expired():
            self._lose(f"no answer in time: {keeping.unanswered}", keeping.grace)
        elif not trouble:
            left = durations.show(max(0.0, round(keeping.deadline - keeping.grace - clock.now())))
            what = f"the command is stopped in {left}" if self._job.on_lost == "terminate" else "the command goes on (--on-lost continue)"
            self._observe(Event("unanswered", "warning", f"{keeping.unanswered}; without an answer {what}"))

    def _lose(self, text: str, grace: float) -> None:
        if self._lost:
            return
        self._lost = text
        stop = self._job.on_lost == "terminate"
        then = "the command is stopped" if stop else "the command goes on (--on-lost continue)"
        self._observe(Event("lost", "trouble", f"lock lost: {text}; {then}"))
        if stop:
            self._stop("lost", grace)

    def _stop(self, why: str, kill_after: float) -> None:
        self._why = self._why or why
        self._answer_by = clock.now() + max(0.2, min(kill_after / 2, ANSWER))  # so that with a lease lost, its grace is not over
        self._guard.stop(kill_after)
        client = os.path.basename(self._job.command[0])
        if client in CLIENTS:
            hint = f"{client} runs its work elsewhere, where no signal of ours arrives: it may go on unlocked; put cronlock inside"
            self._observe(Event("elsewhere", "warning", hint))

    def _pass_on(self, signum: int) -> None:
        """Called from the signal handler."""
        self._guard.pass_on(signum)
        if signum == signal.SIGTERM:
            self._answer_by = min(self._answer_by, clock.now() + ANSWER)

    def _validity(self) -> Validity:
        keeping = self._keeping
        if keeping and self._job.on_lost == "terminate":
            return keeping.deadline, keeping.grace, keeping.gap
        return FOREVER

    def _outcome(self) -> Outcome:
        status = self._ended if self._ended is not None else signal.SIGKILL  # nobody saw its end: no success
        code = None if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        signum = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        stopped = not self._by_itself
        if self._why == "timed-out" and stopped:
            return Outcome("timed-out", code, signum, detail=durations.show(self._job.max_runtime or 0.0))
        if self._lost and (stopped or self._job.on_lost == "continue"):
            return Outcome("lost", code, signum, detail=self._lost if self._job.on_lost == "terminate" else "continued")
        if signum is not None:
            return Outcome("killed", None, signum, detail="through us" if signum in self._signals.received or self._why == "signal" else "")
        return Outcome("ok" if code == 0 else "failed", code)

    def _release(self, lease: Lease, outcome: Outcome) -> None:
        """Tried for 5 s; trouble is said and changes nothing."""
        run = lease.run.but(outcome=outcome.word, status=exits.status(outcome), end=clock.wall())
        until, text = clock.now() + RELEASE, ""
        while clock.now() < until:
            try:
                lease.release(run, min(until, clock.now() + RELEASE / 2))
                return
            except LeaseLost as error:
                if not self._lost:
                    self._observe(Event("lost", "warning", f"the lock was not ours any more at the end: {error}"))
                return
            except UNANSWERED as error:
                text = str(error)
                time.sleep(min(POLL, clock.left(until)))
        self._observe(Event("unreleased", "warning", f"not released: {text}; it runs out by its ttl of {durations.show(self._job.ttl)}"))


def environment(job: Job, run: Run | None, store: str) -> Mapping[str, str]:
    """The caller's, and what the command may want to know of its run. HELD: the tokens of all runs around it, its own last."""
    mine = {"NAME": job.name, "STORE": store}
    inherited = dict(job.environ)
    if run:
        held = f"{job.environ.get('CRONLOCK_RUN_HELD', '')} {run.token}".strip()
        mine |= {"ID": run.run_id, "TOKEN": run.token, "FENCE": str(run.fence), "HELD": held}
    else:  # a run around this one has other writes to protect: its fence would pass for ours
        for key in ("ID", "TOKEN", "FENCE"):
            inherited.pop(f"CRONLOCK_RUN_{key}", None)
    return {**inherited, **{f"CRONLOCK_RUN_{key}": value for key, value in mine.items()}}


def become(job: Job, lease: Lease, signals: Signals, store: str) -> NoReturn:
    """-F: this process turns into the command, which carries the lock in an open descriptor until it ends."""
    for fd in lease.fds:
        os.set_inheritable(fd, True)
    environ = environment(job, lease.run, store)
    signals.give_back()
    try:
        first_that_starts(job.command, environ, lambda path, words: os.execve(path, words, environ))
    except OSError as error:
        refused = cannot_start(job.command, environ, error.errno or 0)
    with suppress(CronlockError):  # the lock goes with this process; else the next holder would say that nobody saw the end
        lease.release(lease.run.but(outcome="failed", status=refused.code, end=clock.wall()), clock.now() + RELEASE)
    raise refused


def new_run(job: Job) -> Run:
    """The holder-to-be: a random token, since host and pid repeat in containers."""
    token = os.urandom(16).hex()
    return Run(os.urandom(4).hex(), token, os.uname().nodename, os.getpid(), username(), _shown(job.command), clock.wall(), job.label)


def random_part(longest: float) -> float:
    return int.from_bytes(os.urandom(4)) / 2**32 * longest


def _open_files(fds: Sequence[int]) -> list[tuple[int, int]]:
    """What is open, not only under which number: a reconnect gets the number just freed."""
    return [(fd, os.fstat(fd).st_ino) for fd in fds]


def _shown(command: tuple[str, ...]) -> str:
    """The command's first words, for people. Only its program name: arguments hold passwords."""
    return os.path.basename(command[0]) if command else ""


def _is_ancestor(answer: Busy, environ: Mapping[str, str]) -> bool:
    return answer.run is not None and answer.run.token in environ.get("CRONLOCK_RUN_HELD", "").split()


def _pid(answer: Busy) -> int:
    return answer.run.pid if answer.run else 0
