"""Events to people, to programs and to syslog: one vocabulary. Nothing here may fail or delay a run.

text    one line each on stderr, silent where nothing is wrong
json    one object per line on stderr, every event
syslog  datagrams to /dev/log as `cronlock[pid]`, every event, with a priority by its level
"""

from __future__ import annotations

import os
import select
import sys
import time

from cronlock import clock, durations, exits
from cronlock.lean import suppress
from cronlock.model import Busy, Done, Event, Outcome

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from collections.abc import Callable

    from cronlock.errors import CronlockError
    from cronlock.model import Run
    from cronlock.usual import Usual

    Sink = Callable[[Event], None]

EVENTS = {
    # how a run ends: the last event, with the exit status as `status`
    "ok": "the command ended with 0",
    "failed": "the command ended with another status, or could not be started",
    "killed": "a signal ended the command",
    "timed-out": "--max-runtime was over, the command was stopped",
    "lost": "the lock is gone, or may be: the command is stopped",
    "busy": "another holder has the lock: the command was skipped; a warning if that holder is overdue",
    "done": "this period's run has been had: the command was skipped",
    "unavailable": "nobody knows who has the lock: the store does not answer",
    "interrupted": "a signal came before the command was started",
    "error": "wrong usage, configuration or rights, or a defect of cronlock: nothing was run",
    # on the way there
    "waiting": "another holder has the lock, and --wait is not over; said once",
    "acquired": "the lock is held",
    "started": "the command runs",
    "ended": "the command has ended; the release follows",
    "overdue": "the command is still running after --warn-after",
    "unanswered": "the store does not answer; the command may go on for a while",
    "renewed": "the store answers again, the lock was held all the time",
    "regained": "the lock was gone for a moment and nobody else had it; it is held again",
    "stuck": "processes of the command survive KILL, so the lock is kept",
    "elsewhere": "part of the command runs where no signal of ours reaches it",
    "unreleased": "the lock could not be released and will run out by its ttl",
    "backend": "something about the store that a person should hear of",
    "heartbeat": "the monitors took a ping",
    "heartbeat-lost": "a monitor did not take a ping",
    "password": "the backend's password is on the command line",
    "background": "the shell puts the command in the background",
}
"""Every kind of event, and what it means. docs/events.md is made of it."""

LEVELS = {
    "trouble": ("always said", 3),  # LOG_ERR
    "warning": ("said, unless -q", 4),  # LOG_WARNING
    "contention": ("said on a terminal or with -v", 6),  # LOG_INFO
    "info": ("said with -v", 6),
}
"""When text says an event of a level, and syslog's severity for it."""

SCHEMA = 1
CRON = 9 << 3  # LOG_CRON
LOG = "/dev/log"
LONGEST = 1800  # bytes of a syslog message that every daemon takes


class Observer:
    """Where the events of one run go. A sink that fails is nobody's outcome."""

    patience: float | None = None  # seconds that whoever reads stderr may keep us with one line; None: as long as they like

    def __init__(self, name: str, *, verbose: bool = False, quiet: bool = False, log_format: str = "text", syslog: bool = False) -> None:
        self._shown = {"trouble"}
        if not quiet:
            everything = verbose or log_format == "json"
            self._shown |= {"warning"} | ({"contention", "info"} if everything else {"contention"} if _is_terminal() else set())
        self._name = name
        self.verbose = verbose and log_format == "text"
        self._print = self._json if log_format == "json" else self._text
        self._syslog = Syslog(name, lambda text: self._print(Event("backend", "warning", text)) if not quiet else None) if syslog else None

    def __call__(self, event: Event) -> None:
        if event.level in self._shown:
            with suppress(Exception):
                self._print(event)
        if self._syslog:
            with suppress(Exception):
                self._syslog(event)

    def tells(self, level: str) -> bool:
        """Whether anybody would hear of it."""
        return level in self._shown or self._syslog is not None

    def _text(self, event: Event) -> None:
        # an error names what is wrong itself
        named = event.level == "trouble" and event.kind in ("error", "failed", "unavailable")
        say(event.text if named else f"{self._name}: {event.text}", patience=self.patience)

    def _json(self, event: Event) -> None:
        import json

        now = clock.wall()
        line = {
            **event.fields,
            "v": SCHEMA,
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z",
            "event": event.kind,
            "level": event.level,
            "name": self._name,
            "host": os.uname().nodename,
            "pid": os.getpid(),
            "message": event.text,
        }
        _write(json.dumps(line), self.patience)


class Syslog:
    """Datagrams by hand: the standard library's module says nothing when nobody listens, and may block."""

    def __init__(self, name: str, complain: Callable[[str], None], path: str = LOG) -> None:
        self._name, self._complain, self._path = name, complain, path
        self._sock: _socket.socket | None = None
        self._said = False

    def __call__(self, event: Event) -> None:
        try:
            try:
                self._send(event)
            except ConnectionError:  # the daemon was started anew since the last event: once more, as syslog(3) does
                self.close()
                self._send(event)
        except OSError as error:
            self.close()
            if not self._said:
                self._said = True
                self._complain(f"--syslog: {self._path}: {error.strerror}: nothing is logged there")

    def close(self) -> None:
        if self._sock:
            self._sock.close()
        self._sock = None

    def _send(self, event: Event) -> None:
        import _socket

        if self._sock is None:
            self._sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
            self._sock.setblocking(False)  # a logger that is stuck keeps no job
            self._sock.connect(self._path)
        now = time.localtime(clock.wall())
        month = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")[now.tm_mon - 1]
        head = f"<{CRON | LEVELS[event.level][1]}>{month} {now.tm_mday:2d} {time.strftime('%H:%M:%S', now)} cronlock[{os.getpid()}]: "
        told = f"{self._name}: {event.text}" if self._name else event.text  # there is none yet when the options are wrong
        body = _printable(told).encode()
        self._sock.send(head.encode() + body[:LONGEST])


def say(text: str, program: str = "cronlock", patience: float | None = None) -> None:
    """One line, whatever is in it; a closed or full stderr is nobody's outcome."""
    _write(_printable(f"{program}: {text}"), patience)


def _write(line: str, patience: float | None) -> None:
    if patience is not None and not _taken(patience):
        return  # a pager, a terminal that was stopped with ^S, a logger that hangs
    with suppress(OSError):
        os.write(2, line.encode() + b"\n")


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)


def _taken(seconds: float) -> bool:
    stderr = select.poll()
    stderr.register(2, select.POLLOUT)
    return bool(stderr.poll(seconds * 1000))


def of_outcome(
    outcome: Outcome, known: Usual | None = None, *, overdue: bool = False, warn: bool = False, status: int | None = None
) -> Event:
    """The last event of a run. `known`: what is usual for the run that is in the way; `overdue`: it has taken far longer, of
    which to `warn`."""
    word, answer = outcome.word, outcome.answer
    fields: dict[str, object] = {"status": exits.status(outcome) if status is None else status}
    if answer:
        fields["usual"] = known.as_dict() if known else None
    if isinstance(answer, Busy):
        fields |= _held(answer) | {"overdue": overdue}
        return Event(word, "warning" if warn else "contention", busy(answer, known, overdue=overdue), fields)
    if isinstance(answer, Done):
        return Event(word, "contention", done(answer, known), fields | {"run": plain_run(answer.run)})
    fields |= {"signal": signal_name(outcome.signal) if outcome.signal else None}
    if word == "killed" and outcome.signal:
        by = "" if outcome.detail else "; the signal did not come through cronlock (out of memory? a crash?)"
        level = "info" if outcome.detail else "trouble"
        return Event(word, level, f"the command was killed by {signal_name(outcome.signal)}{by}", fields)
    if word == "timed-out":
        how = f"it took {signal_name(outcome.signal)}" if outcome.signal else f"it ended with {outcome.code}"
        return Event(word, "trouble", f"stopped after --max-runtime {outcome.detail}; {how}", fields)
    if word == "unavailable":
        return Event(word, "warning", f"{outcome.detail}; the command was skipped (--on-unavailable skip)", fields)
    if word == "interrupted" and outcome.signal:
        return Event(word, "info", f"{signal_name(outcome.signal)} came before the command was started", fields)
    return Event(word, "info", f"{word}" + (f" with status {outcome.code}" if word == "failed" else ""), fields)


def of_waiting(answer: Busy, seconds: float) -> Event:
    """Who is in the way of a start that waits, for at most so many seconds."""
    longest = f" up to {durations.show(round(seconds, 1))}" if seconds < float("inf") else ""
    who = busy(answer).removeprefix("busy: ")
    return Event("waiting", "contention", f"waiting{longest}: {who}", _held(answer))


def of_error(error: CronlockError) -> Event:
    """The last event of a run that ended in an error of ours."""
    status = exits.status(error)
    words = {exits.UNAVAILABLE: "unavailable", exits.LOST: "lost", exits.NOT_FOUND: "failed", exits.NOT_EXECUTABLE: "failed"}
    return Event(words.get(status, "error"), "trouble", str(error), {"status": status})


def busy(answer: Busy, known: Usual | None = None, *, overdue: bool = False) -> str:
    run = answer.run
    if run is None:
        return "busy: held by something that left no readable record (another tool?)"
    if run.outcome == "released":
        return f"busy: taken away by {run.user} on {run.host} (cronlockctl release); its holder may still be stopping"
    if answer.held:
        rest = f" for another {durations.show(round(answer.ttl_left, 1))}" if answer.ttl_left is not None else ""
        return f"busy: kept by --min-hold{rest}; last run on {run.host}, pid {run.pid}, started {clock.stamp(run.start)}"
    held = durations.show(max(0.0, round(clock.wall() - run.start)))
    who = f"{run.host}, pid {run.pid}, user {run.user}, command {run.command}, since {clock.stamp(run.start)} ({held}{_usually(known)})"
    return f"busy: {'OVERDUE, ' if overdue else ''}held by {who}" + ("; cronlockctl release stops it" if overdue else "")


def done(answer: Done, known: Usual | None = None) -> str:
    run = answer.run
    end = f"ended {run.outcome} at {clock.stamp(run.end)}" if run.end is not None else "has not ended, or nobody saw it end"
    took = f" after {durations.show(max(0.0, round(run.end - run.start)))}{_usually(known)}" if run.end is not None else ""
    who = f"this period ({run.label}) was run on {run.host}, pid {run.pid}, from {clock.stamp(run.start)}"
    return f"done: {who}; it {end}{took}; run without --once-per to run it anyway"


def _held(answer: Busy) -> dict[str, object]:
    run = answer.run
    told = {"holder": plain_run(run), "held_for": round(clock.wall() - run.start, 3)} if run else {"holder": None, "held_for": None}
    return told | {"ttl_left": answer.ttl_left}


def _usually(known: Usual | None) -> str:
    return f", usually {durations.show(round(known.median, 0 if known.median >= 10 else 1))}" if known else ""


def plain_run(run: Run) -> dict[str, object]:
    """As docs/cronlockctl.md has it; without the token, which is as good as the lock."""
    took = round(run.end - run.start, 3) if run.end is not None else None
    return {k: v for k, v in run.as_dict().items() if k != "token"} | {"outcome": run.outcome or None, "duration": took}


def signal_name(number: int) -> str:
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _is_terminal() -> bool:
    try:
        return sys.stderr is not None and os.isatty(2)
    except OSError:
        return False
