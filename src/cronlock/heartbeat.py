"""Heartbeats: the lock tells whether a job ran, the heartbeat tells the monitor whether it finished.

An observer that sends pings from threads, so that a monitor which is dead, slow or lying delays nothing before the
command, keeps no lock and changes no status. This module is imported only where a URL is given, pings.py only once the
command runs, and no thread exists before the guard was forked.
"""

from __future__ import annotations

import os

from cronlock import clock, durations, exits, observers
from cronlock.heartbeat_url import parse
from cronlock.model import Event, Outcome

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cronlock.pings import Monitor, Ping
    from cronlock.tail import Ring

MARGIN = 0.2  # seconds of --heartbeat-timeout kept for saying what was lost


class Heartbeat:
    """An observer: hears that the command has started and ended, and tells every monitor."""

    def __init__(
        self, urls: Sequence[str], name: str, timeout: float, observe: Callable[[Event], None], output: Ring | None = None
    ) -> None:
        self._name, self._timeout, self._observe, self._output = name, timeout, observe, output
        self._targets = [parse(url, nth) for nth, url in enumerate(urls, 1)]
        self._monitors: list[Monitor] = []
        self._started: float | None = None
        self._duration: float | None = None

    def observe(self, event: Event) -> None:
        """Events of the run, also passed on."""
        self._observe(event)
        if event.kind == "started":
            self._started = clock.now()
            ping = self._prepared(str(event.fields.get("run_id", "")))
            for monitor in self._monitors:
                monitor.start(ping)
        elif event.kind == "ended" and self._started is not None:
            self._duration = clock.now() - self._started

    def _prepared(self, run_id: str = "") -> Ping:
        """What is imported only now no longer delays the command."""
        from cronlock import pings

        self._monitors = [pings.Monitor(target, self._timeout) for target in self._targets]
        self._ping = pings.Ping(self._name, os.uname().nodename, *pings.identity(run_id))
        return self._ping

    def finish(self, outcome: Outcome) -> None:
        """The final ping: returns when every monitor has answered, or --heartbeat-timeout is over. Nothing for a run that was none."""
        if not outcome.ran:
            return
        until = clock.now() + max(self._timeout - MARGIN, self._timeout / 2)
        status = exits.status(outcome)
        started = self._ping if self._started is not None else self._prepared()
        ping = started.but(outcome=outcome.word, status=status, duration=self._duration or 0.0, reason=reason(outcome, status))
        for monitor in self._monitors:
            monitor.end(ping, self._output, until)
        heard, lost = [], []
        for monitor in self._monitors:
            answer = monitor.answer(until)
            if answer == "":
                heard.append(monitor.host)
            else:
                lost.append(f"{monitor.host} ({'no answer' if answer is None else answer})")
        if heard:
            text = f"heartbeat: {', '.join(heard)} heard {ping.text}"
            self._observe(Event("heartbeat", "info", text, {"heard": heard}))
        if lost:
            took = durations.show(self._timeout)
            text = f"heartbeat lost: {', '.join(lost)}; tried within --heartbeat-timeout {took}, the run itself is not affected"
            self._observe(Event("heartbeat-lost", "warning", text, {"lost": lost}))


def reason(outcome: Outcome, status: int) -> str:
    """What the status alone does not say."""
    word = outcome.word
    if word == "killed" and outcome.signal:
        return f"killed by {observers.signal_name(outcome.signal)}, status {status}"
    if word == "timed-out":
        return f"timed-out: stopped after --max-runtime {outcome.detail}, status {status}"
    if word == "lost":
        return f"lost: {outcome.detail if outcome.detail != 'continued' else 'the lock was lost, the command went on'}, status {status}"
    if word == "failed" and outcome.detail:
        return f"{word}: {outcome.detail.partition(' in PATH=')[0]}, status {status}"  # this host's directories are not for others
    return ""
