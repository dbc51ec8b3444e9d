"""`cronlockctl check`: every trap of production that can be seen from here, a line each, with the remedy."""

from __future__ import annotations

import os
import select

from cronlock import clock, durations, errors, exits
from cronlock.config import has_password, load, settle
from cronlock.ctl.table import WIDTH, fancy, paint, printable, wide
from cronlock.ctl.ttl import lease
from cronlock.heartbeat_url import parse
from cronlock.lean import nothing, signal, suppress
from cronlock.local import username
from cronlock.model import Finding
from cronlock.options import OPTIONS
from cronlock.registry import open_backend

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from cronlock.ctl.crontab import Text
    from cronlock.protocol import Backend

SCHEMA = 1
MARKS = {"ok": ("✓", "+", "good"), "warning": ("!", "!", "odd"), "trouble": ("✗", "x", "bad")}
LEVELS = tuple(MARKS)
BUILT_IN = "built in"  # source of a value that nobody set
PATIENCE = 5.0  # seconds for crontab(1)
SLOW = 0.5  # seconds for one question; every start waits for two


def findings(backend: Backend, argv: Sequence[str], environ: Mapping[str, str], config: str | None = None) -> Iterator[Finding]:
    """`config`: the file that --config names."""
    yield from store(backend)
    yield from settings(environ, config)
    yield from command_line(argv)
    yield from lines(list(_crontabs()))


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


def settings(environ: Mapping[str, str], config: str | None) -> Iterator[Finding]:
    """What a cronlock with no options would do here, and where that comes from; then what the config says of single locks."""
    given = {"config": config} if config else {}
    try:
        values, sources = settle(given, "", environ)
        locks = load(values["config"], environ).locks
        yield from (Finding("ok", "setting", text) for text in _set(values, sources))
    except errors.CronlockError as error:
        yield Finding("trouble", "setting", str(error), f"until then every run ends with status {exits.status(error)}")
        return
    yield lease(values["ttl"], values["kill_after"])
    for name in locks:
        try:
            own, theirs = settle(given, name, environ)
            told = "; ".join(_set(own, {key: source for key, source in theirs.items() if source != sources[key]}))
        except errors.CronlockError as error:
            yield Finding("trouble", "setting", f"of {name}: {error}", f"until then its runs end with status {exits.status(error)}")
            continue
        yield Finding("ok", "setting", f"of {name}: {told or 'none that counts here'}")
        if (doubt := lease(own["ttl"], own["kill_after"])).level != "ok":
            yield Finding(doubt.level, "ttl", f"of {name}: {doubt.text}", doubt.remedy)
    if "KUBERNETES_SERVICE_HOST" in environ:
        if values["conflict_exit_code"]:
            text = f"in a pod a skipped run ends with {values['conflict_exit_code']}, so Kubernetes starts the pod again"
            yield Finding("warning", "pod", text, "-E 0 with --once-per, or CRONLOCK_CONFLICT_EXIT_CODE=0")
        else:
            yield Finding("ok", "pod", "a skipped run ends with 0")


def _set(values: Mapping[str, Any], sources: Mapping[str, str]) -> Iterator[str]:
    """What somebody has set, and who; without passwords and tokens."""
    for option in OPTIONS:
        source, value = sources.get(option.key, BUILT_IN), values[option.key]
        if source == BUILT_IN or option.name == "config":
            continue
        if option.name == "backend":
            value = open_backend(value).where
        elif option.name == "heartbeat":
            value = [parse(url, nth).host for nth, url in enumerate(value, 1)]
        elif option.kind in ("duration", "wait", "period"):
            value = durations.show(value)
        yield f"{option.name} {' '.join(value) if option.kind == 'words' else value}, from {source}"


def command_line(argv: Sequence[str]) -> Iterator[Finding]:
    if any(has_password(word) for word in argv):
        remedy = "CRONLOCK_BACKEND, the config file, ?password_file= or .pgpass"
        yield Finding("warning", "password", "on the command line, where every user's ps shows it", remedy)
    else:
        yield Finding("ok", "password", "none on the command line")


def lines(crontabs: Sequence[Text]) -> Iterator[Finding]:
    named = [one for one in crontabs if "cronlock" in one[1]]
    found: list[Finding] = []
    if named:
        from cronlock.ctl import crontab  # with re and shlex, for whom there is something to read

        found = list(crontab.findings(named))
    yield from found or [Finding("ok", "crontab", "no line here starts cronlock")]


def _crontabs() -> Iterator[Text]:
    """The caller's crontab, and the system's, in which a user name stands before the command."""
    yield "crontab -l", _printed("crontab", "-l"), username()
    names: list[str] = []
    with suppress(OSError):
        names = [name for name in sorted(os.listdir("/etc/cron.d")) if name.replace("-", "a").replace("_", "a").isalnum()]  # as cron(8)
    for path in ("/etc/crontab", *(f"/etc/cron.d/{name}" for name in names)):
        with suppress(OSError), open(path, errors="surrogateescape", newline="\n") as file:
            yield path, file.read(), ""


def _printed(*words: str) -> str:
    """What a program says on stdout; nothing if it isn't there. Importing subprocess would be a quarter of this verb's time."""
    out, null = os.memfd_create("out"), nothing()
    places = [(os.POSIX_SPAWN_DUP2, null, 0), (os.POSIX_SPAWN_DUP2, out, 1), (os.POSIX_SPAWN_DUP2, null, 2)]
    with open(out, errors="surrogateescape", newline="\n") as file, open(null), suppress(OSError):
        pid = os.posix_spawnp(words[0], words, os.environ, file_actions=places)
        watched = os.pidfd_open(pid)
        poll = select.poll()
        poll.register(watched, select.POLLIN)
        if not poll.poll(PATIENCE * 1000):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        file.seek(0)
        return file.read()
    return ""


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
        if lines[-1] and wide(lines[-1]) + 1 + wide(word) > room:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + word
    return f"\n{' ' * indent}".join(lines)


def status(found: Sequence[Finding]) -> int:
    return max((LEVELS.index(one.level) for one in found), default=0)


def as_json(backend: Backend, found: Sequence[Finding]) -> dict[str, object]:
    return {"v": SCHEMA, "store": backend.where, "host": os.uname().nodename, "findings": [one.as_dict() for one in found]}
