"""`cronlock`: argv and environment -> Job -> run -> exit status. The only function that hands a number to the OS."""

from __future__ import annotations

import gc

gc.disable()  # before the other imports: in one short life, collecting costs a fifth of the start and frees nothing that matters

import os
import sys

from cronlock import clock, errors, exits, observers
from cronlock.arguments import COMPLETE, doubts, plain, understand
from cronlock.config import settle
from cronlock.lean import nothing, suppress
from cronlock.local import lately, mark
from cronlock.model import Event, Outcome
from cronlock.options import FLAGS
from cronlock.registry import open_backend
from cronlock.run import run
from cronlock.usual import LEAST, overdue, usual

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, NoReturn

    from cronlock.heartbeat import Heartbeat
    from cronlock.model import Job
    from cronlock.protocol import Backend
    from cronlock.tail import Tail
    from cronlock.usual import Usual

PATIENCE = 0.5  # seconds that a reader of stderr may keep us from renewing the lock, or from letting it go
HOUR = 3600.0  # seconds between two warnings of an overdue holder on one host


def main() -> NoReturn:
    """The console script."""
    _own_descriptors()
    status = start(sys.argv[1:], _inherited(os.environ))
    if sys.stdout:  # None when the caller closed it
        with suppress(OSError, ValueError):
            sys.stdout.flush()
    os._exit(status)  # skips taking apart what the kernel frees anyway: 100 ms with psycopg loaded


def start(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """The exit status of one command line."""
    heartbeat: Heartbeat | None = None
    observe = observers.Observer("", **_wanted(argv, environ))  # until the options are understood
    try:
        found = _parsed(argv, environ)
        if isinstance(found, int):
            return found
        given, words = found
        values, sources = settle(given, words[0] if words else "", environ)
        job, url = understand(values, words, environ, given)
        observe = observers.Observer(job.name, **{key: values[key] for key in ("verbose", "quiet", "log_format", "syslog")})
        heartbeat, tail = monitored(job, observe) if job.heartbeat else (None, None)
        backend = open_backend(url)
        observe.patience = PATIENCE
        try:
            outcome = run(job, backend, heartbeat.observe if heartbeat else observe, tail)
        finally:
            observe.patience = None
        if heartbeat:  # before all that is left to say: whoever reads stderr may be stuck, as cron is with its mailer
            heartbeat.finish(outcome)
        if outcome.ran:  # not on a skip: N-1 servers would mail it every tick
            for doubt in doubts(sources, words, job, url):
                observe(doubt)
    except errors.CronlockError as error:
        if heartbeat and isinstance(error, errors.CommandError):
            heartbeat.finish(Outcome("failed", error.code, detail=str(error)))
        observe(observers.of_error(error))
        return exits.status(error)
    except KeyboardInterrupt:
        return exits.SIGNAL + 2
    except Exception as error:  # a defect of ours: one line for cron's mail, the whole story with -v
        text = f"internal error, please report it: {type(error).__name__} in {_where(error)} (-v shows the whole story)"
        observe(Event("error", "trouble", text, {"status": exits.INTERNAL}))
        if observe.verbose and sys.stderr:
            sys.excepthook(type(error), error, error.__traceback__)
        return exits.INTERNAL
    status = finish(outcome, job, backend, observe)
    if tail:
        tail.settle()
    return status


def monitored(job: Job, observe: Callable[[Event], None]) -> tuple[Heartbeat, Tail | None]:
    """Imported only here: a line without --heartbeat pays nothing for it. UsageError for a URL that is none."""
    from cronlock.heartbeat import Heartbeat

    tail = None
    if job.heartbeat_output:
        from cronlock.tail import Tail

        tail = Tail(job.heartbeat_output)
    return Heartbeat(job.heartbeat, job.name, job.heartbeat_timeout, observe, tail.ring if tail else None), tail


def finish(outcome: Outcome, job: Job, backend: Backend, observe: observers.Observer) -> int:
    status = exits.status(outcome, job.conflict_code)
    known, late, warn = in_the_way(outcome, job, backend, observe) if outcome.answer else (None, False, False)
    observe(observers.of_outcome(outcome, known, overdue=late, warn=warn, status=status))
    return status


def in_the_way(outcome: Outcome, job: Job, backend: Backend, observe: observers.Observer) -> tuple[Usual | None, bool, bool]:
    """What is usual for the run that a skipped start met, whether it is overdue, and whether to warn of that: one read more, and only
    if somebody hears of it, or the holder has run for so long that a warning may be due, and none was given here within the hour."""
    run = outcome.answer.run if outcome.answer else None
    if run is None:
        return None, False, False
    what = f"overdue {backend.where} {job.name}"
    going = outcome.word == "busy" and not run.outcome and clock.wall() - run.start > LEAST
    warn = going and observe.tells("warning") and not lately(what, HOUR)
    if not warn and not observe.tells("contention"):
        return None, False, False
    known = None
    with suppress(errors.CronlockError):
        known = usual(backend.history(job.name, clock.now() + min(2.0, backend.timeout)))
    late = going and overdue(run, known, clock.wall())
    return known, late, warn and late and mark(what)


def _parsed(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[dict[str, object], list[str]] | int:
    """What was given and the words after it; or the exit status of --help, --version and completion, which click answers."""
    found = plain(argv) if COMPLETE not in environ else None
    if found:
        return found
    from cronlock import manual

    if COMPLETE in environ:
        return manual.complete(environ[COMPLETE])
    return manual.parse(argv) or 0


def _wanted(argv: Sequence[str], environ: Mapping[str, str]) -> dict[str, Any]:
    """A guess, for errors in the options themselves."""
    json = " --log-format json" in f" {' '.join(argv).replace('=', ' ')}" or environ.get("CRONLOCK_LOG_FORMAT") == "json"
    syslog = "--syslog" in argv or FLAGS.get(environ.get("CRONLOCK_SYSLOG", "").lower(), False)
    return {"verbose": "-v" in argv, "log_format": "json" if json else "text", "syslog": syslog}


def _inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """What cronlock was started with. Python's start adds LC_CTYPE in the C locale (PEP 538); the first environment block,
    which the kernel keeps, tells whether it did."""
    inherited = dict(environ)
    if inherited.get("LC_CTYPE") in ("C.UTF-8", "C.utf8", "UTF-8"):
        with suppress(OSError), open("/proc/self/environ", "rb") as file:
            if b"\0LC_CTYPE=" not in b"\0" + file.read():
                del inherited["LC_CTYPE"]
    return inherited


def _own_descriptors() -> None:
    """0, 1 and 2 must be taken, or a lock would get one of these numbers. Not inheritable: for the command they stay closed."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            nothing()


def _where(error: BaseException) -> str:
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    return f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}" if trace else "?"
