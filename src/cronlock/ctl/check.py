"""`cronlockctl check`: every trap of production that can be seen from here, a line each, with the remedy."""

from __future__ import annotations

import os

from cronlock import clock, durations, errors, exits
from cronlock.ctl.table import WIDTH, fancy, paint, printable
from cronlock.model import Finding
from cronlock.options import OPTIONS, from_environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cronlock.protocol import Backend

SCHEMA = 1
MARKS = {"ok": ("✓", "+", "good"), "warning": ("!", "!", "odd"), "trouble": ("✗", "x", "bad")}
LEVELS = tuple(MARKS)
SLOW = 0.5  # seconds for one question; every start waits for two


def findings(backend: Backend, argv: Sequence[str], environ: Mapping[str, str]) -> Iterator[Finding]:
    yield from store(backend)
    yield from command_line(backend, argv, environ)


def store(backend: Backend) -> Iterator[Finding]:
    try:
        backend.status("cronlockctl", clock.now() + backend.timeout)  # connects
        asked = clock.now()
        backend.status("cronlockctl", asked + backend.timeout)
        took = clock.now() - asked
    except errors.CronlockError as error:
        what = "rights" if isinstance(error, errors.PermissionDenied) else "reachable"
        yield Finding("trouble", what, str(error), f"until then every run ends with status {exits.status(error)}")
        return
    yield Finding("ok", "reachable", backend.where)
    shown = f"{took * 1000:.1f} ms a question"
    yield Finding("warning" if took > SLOW else "ok", "latency", shown, "every start waits so long, twice" if took > SLOW else "")
    more = getattr(backend, "check", None)
    try:
        yield from more(clock.now() + backend.timeout) if more else ()
    except errors.CronlockError as error:
        yield Finding("trouble", "check", str(error))


def command_line(backend: Backend, argv: Sequence[str], environ: Mapping[str, str]) -> Iterator[Finding]:
    """What the crontab lines of this environment would meet."""
    try:
        given = {option.key: option.default for option in OPTIONS} | from_environment(environ)
    except errors.UsageError as error:
        yield Finding("trouble", "options", str(error))
        return
    ttl, kill_after = given["ttl"], given["kill_after"]
    grace = min(kill_after, ttl / 4)
    text = f"ttl {durations.show(ttl)}, renewed every {durations.show(ttl / 3)}; on a loss {durations.show(grace)} from TERM to KILL"
    if grace < kill_after:
        short = f"a quarter of the ttl is shorter than --kill-after {durations.show(kill_after)}"
        yield Finding("warning", "ttl", text, f"{short}: a command that needs that long needs --ttl {durations.show(4 * kill_after)}")
    elif ttl < 10:
        yield Finding("warning", "ttl", text, "a pause of a few seconds (load, network) costs the lock: --ttl 30s or more")
    else:
        yield Finding("ok", "ttl", text)
    if any("://" in word and ":" in word.partition("://")[2].rpartition("@")[0] for word in argv):
        remedy = "CRONLOCK_BACKEND, ?password_file= or .pgpass"
        yield Finding("warning", "password", "on the command line, where every user's ps shows it", remedy)
    else:
        yield Finding("ok", "password", "none on the command line")
    if "KUBERNETES_SERVICE_HOST" in environ:
        if given["conflict_exit_code"]:
            text = f"in a pod a skipped run ends with {given['conflict_exit_code']}, so Kubernetes starts the pod again"
            yield Finding("warning", "pod", text, "-E 0 with --once-per, or CRONLOCK_CONFLICT_EXIT_CODE=0")
        else:
            yield Finding("ok", "pod", "a skipped run ends with 0")


def table(backend: Backend, found: Sequence[Finding]) -> str:
    lines = []
    for one in found:
        nice, plain, look = MARKS[one.level]
        lines.append(f"{paint(fancy(nice, plain), look)} {one.subject:<12} " + _folded(one.text, 15))
        if one.remedy:
            lines.append(" " * 15 + _folded(fancy("→ ", "-> ") + one.remedy, 15))
    return "\n".join(lines)


def _folded(text: str, indent: int) -> str:
    """At most WIDTH wide; a word that is longer stays whole, it may be something to paste."""
    lines, room = [""], WIDTH - indent
    for word in printable(text).split(" "):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > room:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + word
    return f"\n{' ' * indent}".join(lines)


def status(found: Sequence[Finding]) -> int:
    return max((LEVELS.index(one.level) for one in found), default=0)


def as_json(backend: Backend, found: Sequence[Finding]) -> dict[str, object]:
    return {"v": SCHEMA, "store": backend.where, "host": os.uname().nodename, "findings": [one.as_dict() for one in found]}
