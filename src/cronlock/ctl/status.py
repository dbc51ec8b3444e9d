"""`cronlockctl status`: what is held, by whom, for how long, and whether that is usual."""

from __future__ import annotations

from cronlock import clock
from cronlock.ctl.table import Row, columns, cut, paint, printable, span
from cronlock.model import Value
from cronlock.observers import plain_run
from cronlock.usual import TIMES, Usual, overdue, usual

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cronlock.model import Run, Status
    from cronlock.protocol import Backend

SCHEMA = 1
HEADS = ("LOCK", "STATE", "HOLDER", "FOR", "USUAL/P95", "TTL", "LAST")
FREE = 3  # exit status of `status NAME` while nobody holds it, as `systemctl status` has it for what does not run


class Facts(Value):
    """All there is to know of one name."""

    name: str
    state: str  # held | kept (--min-hold) | released (by an operator, and its holder may still be stopping) | free
    now: float
    holder: Run | None  # who has it, or (released) who took it away
    ttl_left: float | None
    kept_until: float | None
    usual: Usual | None
    overdue: bool
    history: tuple[Run, ...]  # runs that are over, oldest first
    detail: str = ""

    @property
    def last(self) -> Run | None:
        return self.history[-1] if self.history else None

    @property
    def last_ok(self) -> Run | None:
        return next((run for run in reversed(self.history) if run.outcome == "ok"), None)


def look(backend: Backend, name: str) -> Facts:
    """Two reads, each in the backend's time-out."""
    status = backend.status(name, clock.now() + backend.timeout)
    history = tuple(backend.history(name, clock.now() + backend.timeout))
    return facts(status, history, clock.wall())


def facts(status: Status, history: tuple[Run, ...], now: float) -> Facts:
    run = status.run
    released = run is not None and run.outcome == "released"
    going = status.held and (run is None or not run.outcome)
    kept = status.held_until if status.held_until > now and not going else None
    if run and not going and not released and not any(run.token == other.token for other in history):
        history = (*history, run if run.outcome else run.but(outcome="vanished"))  # the store's last word, not in the history (yet)
    known = usual(history)
    occupied = status.held or bool(status.ttl_left)
    state = "held" if going else "kept" if kept else "released" if released and occupied else "free"
    return Facts(
        status.name,
        state,
        now,
        run if state in ("held", "released") else None,
        status.ttl_left if state != "free" else None,
        kept,
        known,
        going and run is not None and overdue(run, known, now),
        history,
        status.detail,
    )


def table(found: Sequence[Facts]) -> str:
    """One line a lock, or a sentence when there is none."""
    if not found:
        return "no lock has been used here yet"
    return columns(HEADS, [_row(one) for one in found], elastic=("LOCK", "HOLDER"), painted="STATE")


def _row(one: Facts) -> Row:
    run, known = one.holder if one.state == "held" else None, one.usual
    holder = f"{run.host}:{run.pid}" if run else "?" if one.state == "held" else ""
    held = span(one.now - run.start) if run else ""
    usually = f"{span(known.median)}/{span(known.p95)}" if known else ""
    ttl = span(one.ttl_left) if one.ttl_left is not None else ""
    look = "bad" if one.overdue or (one.last and one.last.outcome not in ("ok", "interrupted")) else "good" if one.state == "held" else ""
    return Row((one.name, "OVERDUE" if one.overdue else one.state, holder, held, usually, ttl, one.last.outcome if one.last else ""), look)


def page(one: Facts) -> str:
    """Everything about one lock, a line each."""
    lines = [f"{cut(printable(one.name), 60)}: {paint('held, OVERDUE', 'bad') if one.overdue else one.state}"]

    def say(what: str, text: str) -> None:
        lines.append(cut(f"  {what:<10}{printable(text)}", 80))

    run, known = one.holder, one.usual
    if run and one.state == "held":
        say("holder", f"{run.host}, pid {run.pid}, user {run.user}, command {run.command}")
        say("since", f"{clock.stamp(run.start)}, for {span(one.now - run.start)}" + (f", period {run.label}" if run.label else ""))
    elif run:
        say("released", f"by {run.user} on {run.host} at {clock.stamp(run.start)}; its holder is stopping")
    if one.detail:
        say("detail", one.detail)
    if known:
        late = f"; this run takes over {TIMES} times as long" if one.overdue else ""
        say("usual", f"median {span(known.median)}, p95 {span(known.p95)} of {known.runs} run{'s' * (known.runs != 1)}{late}")
    if one.ttl_left is not None and one.state != "kept":
        say("ttl left", span(one.ttl_left))
    if one.kept_until:
        say("kept", f"until {clock.stamp(one.kept_until)} (--min-hold)")
    for what, last in (("last run", one.last), ("last ok", one.last_ok)):
        if last and (what == "last run" or last is not one.last):
            say(what, f"{ended(last)}, {clock.stamp(last.start)}, took {took(last)} on {last.host}")  # a cloud's host names are long
    if not one.last and not one.holder:
        say("last run", "none is known")
    return "\n".join(lines)


def ended(run: Run) -> str:
    return run.outcome if run.outcome == "ok" or run.status is None else f"{run.outcome} ({run.status})"


def took(run: Run) -> str:
    return span(run.end - run.start) if run.end is not None else "?"


def as_json(backend: Backend, found: Sequence[Facts]) -> dict[str, object]:
    """docs/cronlockctl.md has the schema."""
    return {"v": SCHEMA, "store": backend.where, "locks": [_plain(one) for one in found]}


def _plain(one: Facts) -> dict[str, object]:
    return {
        "name": one.name,
        "state": one.state,
        "holder": plain_run(one.holder) if one.holder and one.state == "held" else None,
        "held_for": round(one.now - one.holder.start, 3) if one.holder and one.state == "held" else None,
        "ttl_left": one.ttl_left,
        "kept_until": one.kept_until,
        "overdue": one.overdue,
        "usual": one.usual.as_dict() if one.usual else None,
        "last": plain_run(one.last) if one.last else None,
        "last_ok": plain_run(one.last_ok) if one.last_ok else None,
        "detail": one.detail,
    }


def verdict(found: Iterable[Facts], age: float) -> tuple[int, list[str]]:
    """As monitoring plugins have it: 0 a success not older than `age` seconds, 1 so but the last run or the one that is
    going is no good, 2 no such success; a line for each, the worst first."""
    lines = []
    for one in found:
        good, last = one.last_ok, one.last
        since = one.now - (good.end or good.start) if good else None
        said = f"last success {span(since)} ago on {good.host}" if good and since is not None else "no success is known"
        if since is None or since > age:
            level, more = 2, f", more than {span(age)}"
        elif last and last is not good and last.outcome not in ("ok", "interrupted"):
            level, more = 1, f"; the last run was {ended(last)} on {last.host}"
        elif one.overdue:
            level, more = 1, "; the run that is going is overdue"
        else:
            level, more = 0, ""
        lines.append((level, f"{('OK', 'WARNING', 'CRITICAL')[level]}: {printable(one.name)}: {said}{more if good else ''}"))
    lines.sort(key=lambda line: -line[0])
    return (lines[0][0], [text for _, text in lines]) if lines else (2, ["CRITICAL: no lock has been used here yet"])
