"""`cronlockctl metrics`: what status knows, as Prometheus reads it (text format 0.0.4)."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from cronlock.ctl.status import Facts
    from cronlock.model import Run

    Sample = tuple[str, tuple[str, ...], float]  # metric, values of name, host and (runs only) outcome

METRICS = {
    "cronlock_last_start_timestamp_seconds": "When the last run started on this host, by its own clock.",
    "cronlock_last_success_timestamp_seconds": "When the last run that ended ok did so on this host.",
    "cronlock_last_duration_seconds": "How long the last run on this host took.",
    "cronlock_history_runs": "Runs in the history (at most 100 a name), by outcome; no counter, for old ones drop out.",
    "cronlock_held": "1 while this host holds the lock; 0 with an empty host while nobody does.",
    "cronlock_held_seconds": "For how long the holder has had it.",
    "cronlock_ttl_left_seconds": "Until the lock runs out unless it is renewed.",
    "cronlock_usual_duration_seconds": "Median duration of the runs that ended ok (if none did: failed), of all hosts (host is empty).",
}


def text(found: Sequence[Facts]) -> str:
    samples: dict[str, list[Sample]] = {metric: [] for metric in METRICS}
    for one in found:
        for sample in _of(one):
            samples[sample[0]].append(sample)
    lines = []
    for metric, about in METRICS.items():
        lines += [f"# HELP {metric} {about}", f"# TYPE {metric} gauge"]
        lines += [_line(*sample) for sample in samples[metric]]
    return "\n".join(lines)


def _of(one: Facts) -> Iterator[Sample]:
    name, held = one.name, one.state == "held"
    going = (one.holder,) if one.holder and held else ()
    for host in dict.fromkeys(run.host for run in (*one.history, *going)):
        here = [run for run in one.history if run.host == host]
        yield "cronlock_last_start_timestamp_seconds", (name, host), max(run.start for run in (*here, *going) if run.host == host)
        ok = [run.end for run in here if run.outcome == "ok" and run.end is not None]
        if ok:
            yield "cronlock_last_success_timestamp_seconds", (name, host), ok[-1]
        took = [run.end - run.start for run in here if run.end is not None]
        if took:
            yield "cronlock_last_duration_seconds", (name, host), max(0.0, took[-1])
        for outcome, count in _counts(here).items():
            yield "cronlock_history_runs", (name, host, outcome), count
    host = one.holder.host if one.holder and held else ""
    yield "cronlock_held", (name, host), float(held)
    if one.holder and held:
        yield "cronlock_held_seconds", (name, host), max(0.0, one.now - one.holder.start)
    if held and one.ttl_left is not None:
        yield "cronlock_ttl_left_seconds", (name, host), one.ttl_left
    if one.usual:
        yield "cronlock_usual_duration_seconds", (name, ""), one.usual.median


def _counts(runs: Iterable[Run]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for run in runs:
        counts[run.outcome] = counts.get(run.outcome, 0) + 1
    return counts


def _line(metric: str, labels: tuple[str, ...], value: float) -> str:
    pairs = ",".join(f'{key}="{_escaped(text)}"' for key, text in zip(("name", "host", "outcome"), labels, strict=False))
    return f"{metric}{{{pairs}}} {value!r}"


def _escaped(text: str) -> str:
    # an undecodable byte of a NAME would make the whole page unreadable, and so would two names that become the same
    shown = text.encode("utf-8", "backslashreplace").decode()
    return shown.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
