"""Events to people: one line each on stderr, silent where nothing is wrong. Nothing here may fail a run."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from cronlock import clock, durations
from cronlock.model import Busy, Done, Event, Outcome

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def stderr_observer(name: str, *, verbose: bool, quiet: bool) -> Callable[[Event], None]:
    """trouble is always said, a warning unless -q, contention on a terminal or with -v, the rest with -v."""
    shown = {"trouble"}
    if not quiet:
        shown |= {"warning"} | ({"contention", "info"} if verbose else {"contention"} if _is_terminal() else set())

    def observe(event: Event) -> None:
        if event.level in shown:
            say(f"{name}: {event.text}")

    return observe


def say(text: str, program: str = "cronlock") -> None:
    """One line, whatever is in it; a closed or full stderr is nobody's outcome."""
    line = "".join(c if c.isprintable() else "?" for c in f"{program}: {text}")
    with suppress(OSError, ValueError):
        os.write(2, line.encode(errors="backslashreplace") + b"\n")


def of_outcome(outcome: Outcome) -> Event:
    """The last event of a run."""
    word, answer = outcome.word, outcome.answer
    if isinstance(answer, Busy):
        return Event(word, "contention", busy(answer))
    if isinstance(answer, Done):
        return Event(word, "contention", done(answer))
    if word == "killed" and outcome.signal:
        by = "" if outcome.detail else "; the signal did not come through cronlock (out of memory? a crash?)"
        return Event(word, "info" if outcome.detail else "trouble", f"the command was killed by {signal_name(outcome.signal)}{by}")
    if word == "timed-out":
        how = f"it took {signal_name(outcome.signal)}" if outcome.signal else f"it ended with {outcome.code}"
        return Event(word, "trouble", f"stopped after --max-runtime {outcome.detail}; {how}")
    if word == "unavailable":
        return Event(word, "warning", f"{outcome.detail}; the command was skipped (--on-unavailable skip)")
    if word == "interrupted" and outcome.signal:
        return Event(word, "info", f"{signal_name(outcome.signal)} came before the command was started")
    return Event(word, "info", f"{word}" + (f" with status {outcome.code}" if word == "failed" else ""))


def busy(answer: Busy) -> str:
    run = answer.run
    if run is None:
        return "busy: held by something that left no readable record (another tool?)"
    if answer.held:
        rest = f" for another {durations.show(round(answer.ttl_left, 1))}" if answer.ttl_left is not None else ""
        return f"busy: kept by --min-hold{rest}; last run on {run.host}, pid {run.pid}, started {clock.stamp(run.start)}"
    held = durations.show(max(0.0, round(clock.wall() - run.start)))
    return f"busy: held by {run.host}, pid {run.pid}, user {run.user}, command {run.command}, since {clock.stamp(run.start)} ({held})"


def done(answer: Done) -> str:
    run = answer.run
    end = f"ended {run.outcome} at {clock.stamp(run.end)}" if run.end is not None else "has not ended, or nobody saw it end"
    who = f"this period ({run.label}) was run on {run.host}, pid {run.pid}, from {clock.stamp(run.start)}"
    return f"done: {who}; it {end}; run without --once-per to run it anyway"


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
