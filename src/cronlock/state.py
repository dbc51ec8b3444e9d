"""The claim state of one name, as a value and as versioned text, and the one rule that decides a claim.

A backend reads it and writes it back in the lock's own round trip; Redis's script and PostgreSQL's statement
say the same rule in their own words, and the contract tests hold the three together.

    {"v": 1, "fence": "1764430000123456", "held": 1764430060.0, "hold": 60.0, "run": {…last grant…}, "claims": [{…}, …]}

`fence` is text because a Lua number would print 1.7644300001235e+15.
"""

from __future__ import annotations

from cronlock.errors import ConfigError
from cronlock.lean import dumps, loads
from cronlock.model import Busy, Done, Grant, Run, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VERSION = 1
LAST = 1e11  # epoch seconds, in the year 5138
BROKEN = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)  # what a text that is not ours raises
KEEP = 100  # claimed labels and history lines that are kept


class State(Value):
    fence: int = 0
    held: float = 0.0  # epoch seconds by the store's clock: until then --min-hold keeps others out
    hold: float = 0.0  # seconds: that --min-hold
    run: Run | None = None  # the last grant; its outcome is empty until its end was written
    claims: tuple[Run, ...] = ()  # the last run of each of the last labels, oldest first


class Foreign(Exception):
    """The text is not ours: broken, or another program's."""


def claim(state: State, grant: Grant, store_now: float) -> State | Busy | Done:
    """Decide for a lock that is free. `store_now`: epoch seconds by the store's clock.

    A label counts as had unless `retry_failed` and its last run did not end `ok` (the lock is free, so a run
    without an outcome is one whose end nobody saw). A held-until beyond the holder's own min-hold from now
    means that the clock was set back since, and is not honoured, or it might last for years.
    """
    for had in reversed(state.claims if grant.run.label else ()):
        if had.label == grant.run.label:
            if grant.retry_failed and had.outcome != "ok":
                break
            return Done(had)
    if state.run and store_now < state.held <= store_now + state.hold + 1:
        return Busy(state.run, held=True, ttl_left=state.held - store_now)
    run = grant.run.but(fence=max(state.fence + 1, int(store_now * 1e6)))
    return State(
        fence=run.fence,
        held=store_now + grant.min_hold if grant.min_hold else 0.0,
        hold=grant.min_hold,
        run=run,
        # one for each label: tries that failed must not push out what another host, an hour behind, has yet to hear of
        claims=(*(c for c in state.claims if c.label != run.label), run)[-KEEP:] if run.label else state.claims,
    )


def ended(state: State, run: Run) -> State:
    """The same state once `run` (with outcome, status, end) is over."""
    return state.but(
        run=run if state.run and state.run.token == run.token else state.run,
        claims=tuple(run if c.token == run.token else c for c in state.claims),
    )


def withdrawn(state: State, token: str) -> State:
    """The same state as if that grant's command had never been meant to start: its label is not used up."""
    if state.run is None or state.run.token != token:
        return state
    return state.but(run=state.run.but(outcome="interrupted"), held=0.0, claims=tuple(c for c in state.claims if c.token != token))


def seized(state: State, lost: Run, by: Run, store_now: float) -> State:
    """The same state after an operator's grant `by` took the place of that of `lost`, which it says has ended."""
    by = by.but(fence=max(state.fence + 1, int(store_now * 1e6)))
    return ended(state, lost).but(run=by, fence=by.fence, held=0.0)


def taken_away(last: Run | None) -> str:
    """By whom, if the last grant is an operator's; else empty."""
    return f"taken away by {last.user} on {last.host} (cronlockctl release)" if last and last.outcome == "released" else ""


def vanished(state: State) -> Run | None:
    """The last grant, if its end was never written: its holder died."""
    return state.run.but(outcome="vanished") if state.run and not state.run.outcome else None


def encode(state: State) -> str:
    return dumps(
        {
            "v": VERSION,
            "fence": str(state.fence),
            "held": state.held,
            "hold": state.hold,
            "run": _plain(state.run) if state.run else None,
            "claims": [_plain(c) for c in state.claims],
        }
    )


def decode(text: str | bytes) -> State:
    """ConfigError: a newer cronlock wrote it. Foreign: nobody of ours did."""
    try:
        raw = loads(text)
        version = raw["v"]
        if version == VERSION:
            return State(
                fence=int(raw["fence"]),
                held=_finite(float(raw["held"])),
                hold=_finite(float(raw["hold"])),
                run=_run(raw["run"]) if raw["run"] else None,
                claims=tuple(_run(c) for c in raw["claims"] or ()),  # cjson writes an empty list as {}
            )
    except BROKEN as error:
        raise Foreign(f"{type(error).__name__}: {error}") from None
    if isinstance(version, int) and version > VERSION:
        raise ConfigError(f"the lock's state has format {version}, this cronlock knows {VERSION}: update cronlock on this host")
    raise Foreign(f"format {version!r}")


def encode_run(run: Run) -> str:
    """One line of the history, or the readable holder beside a token."""
    return dumps({"v": VERSION, **_plain(run)})


def decode_run(text: str | bytes) -> Run:
    """Foreign if it is not one of ours (a newer field is dropped: history is for people)."""
    try:
        return _run(loads(text))
    except BROKEN as error:
        raise Foreign(f"{type(error).__name__}: {error}") from None


def _plain(run: Run) -> dict[str, object]:
    return {k: str(v) if k == "fence" else v for k, v in run.as_dict().items() if v not in ("", None) or k == "token"}


def _run(raw: dict[str, Any]) -> Run:
    number = (int, float)
    known = {k: v for k, v in raw.items() if k in Run._fields}
    known["fence"] = int(str(known.get("fence", 0)))
    run = Run(**{"run_id": "", "host": "", "user": "", "command": "", **known})
    texts = (run.run_id, run.token, run.host, run.user, run.command, run.label, run.outcome)
    if not all(isinstance(t, str) for t in texts) or not isinstance(run.start, number) or not isinstance(run.pid, int):
        raise ValueError("a field has the wrong kind")
    if not (run.end is None or isinstance(run.end, number)) or not (run.status is None or isinstance(run.status, int)):
        raise ValueError("a field has the wrong kind")
    for seconds in (run.start, run.end or 0):
        _finite(seconds)
    return run


def _finite(seconds: float) -> float:
    """JSON's numbers go beyond what a clock shows, and a hold until then would never be over."""
    if not -LAST < seconds < LAST:  # nor is NaN
        raise ValueError("a time that no clock shows")
    return seconds
