"""`cronlockctl`: for people and dashboards. A verb is a function of values to text; only `release` disturbs a lock."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper

from cronlock import clock, errors, exits, observers
from cronlock.arguments import check_name, plain
from cronlock.config import settle
from cronlock.ctl import history, key, metrics, release, status
from cronlock.lean import nothing, suppress
from cronlock.model import Value
from cronlock.options import OPTIONS, Option
from cronlock.registry import open_backend

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, NoReturn

    from cronlock.protocol import Backend

WHERE = tuple(option for option in OPTIONS if option.name in ("backend", "config"))  # they come before the verb
UNKNOWN = 3  # of a monitoring plugin that could not find out
COMPLETE = "_CRONLOCKCTL_COMPLETE"


class Verb(Value):
    run: Callable[..., int]  # of the stores, NAME or '', and the options by key
    help: str
    name: str = ""  # NAME is needed, optional, or not taken
    options: tuple[Option, ...] = ()


def main() -> NoReturn:
    """The console script."""
    sys.stdout = sys.stdout or os.fdopen(nothing(), "w")  # None when the caller closed it
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":  # a NAME may have letters that a latin-1 terminal has not
        sys.stdout.reconfigure(errors="backslashreplace")
    code = start(sys.argv[1:])
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(code)  # as cronlock does: 100 ms with psycopg loaded


def start(argv: list[str]) -> int:
    try:
        found = read(argv) if COMPLETE not in os.environ else None
        if found:
            return call(*found)
        from cronlock.ctl import manual  # click, for help, errors and completion

        return manual.answer(argv)
    except errors.CronlockError as error:
        observers.say(str(error), "cronlockctl")
        return exits.status(error)
    except KeyboardInterrupt:
        return exits.SIGNAL + 2
    except BrokenPipeError:
        os.dup2(nothing(), 1)
        return 0
    except Exception as error:  # a defect of ours
        observers.say(f"internal error, please report it: {type(error).__name__}: {error}", "cronlockctl")
        return exits.INTERNAL


def read(argv: Sequence[str]) -> tuple[Verb, Mapping[str, Any], str, Mapping[str, Any]] | None:
    """The verb, where its locks are, NAME and its options, which may stand on both sides of NAME. None: click has more to say."""
    outer = plain(argv, WHERE)
    verb = VERBS.get(outer[1][0]) if outer and outer[1] else None
    if outer is None or verb is None:
        return None
    options: dict[str, Any] = {}
    names, rest = [], outer[1][1:]
    while rest:
        inner = plain(rest, verb.options)
        if inner is None or "--" in rest:
            return None
        options |= inner[0]
        names += inner[1][:1]
        rest = inner[1][1:]
    if len(names) > bool(verb.name) or (verb.name == "needed" and not names):
        return None
    for name in names:
        check_name(name)
    return verb, outer[0], names[0] if names else "", options


def call(verb: Verb, given: Mapping[str, Any], name: str, options: Mapping[str, Any]) -> int:
    stores = Stores(given)
    try:
        return verb.run(stores, name, **options)
    finally:
        stores.close()


class Stores:
    """What was given, and the backend that it, the environment and the config come to for a lock."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self.given = given
        self._opened: list[Backend] = []

    def open(self, name: str = "") -> Backend:
        values, _ = settle(self.given, name, os.environ)
        self._opened.append(open_backend(values["backend"]))
        return self._opened[-1]

    def close(self) -> None:
        for backend in self._opened:
            backend.close()


def _status(stores: Stores, name: str, json: bool = False, max_age: float | None = None) -> int:
    try:
        backend = stores.open(name)
        names = [name] if name else sorted(backend.names(clock.now() + backend.timeout))
        found = [status.look(backend, one) for one in names]
    except errors.CronlockError as error:  # a wrong config too: a monitor shows what is on stdout, and knows 0 to 3
        if max_age is None:
            raise
        _print(f"UNKNOWN: {error}")
        return UNKNOWN
    code, lines = status.verdict(found, max_age) if max_age is not None else (0, [])
    if json:
        _json(status.as_json(backend, found))
    elif lines:
        _print("\n".join(lines))
    else:
        _print(status.page(found[0]) if name else status.table(found))
    if max_age is None and name and found[0].state == "free":
        return status.FREE
    return code


def _history(stores: Stores, name: str, json: bool = False) -> int:
    backend = stores.open(name)
    runs = backend.history(name, clock.now() + backend.timeout)
    if json:
        _json(history.as_json(backend, name, runs))
    else:
        _print(history.table(runs))
    return 0


def _release(stores: Stores, name: str, yes: bool = False) -> int:
    backend = stores.open(name)
    run, text = release.holder(backend, name)
    _print(text)
    if run is None:
        return 1
    if not yes and not _confirmed("Take it away? Its command will be stopped."):
        return 1
    _print(release.release(backend, name, run))
    return 0


def _check(stores: Stores, _name: str, json: bool = False) -> int:
    from cronlock.ctl import check  # it reads crontabs, with re, shlex and subprocess

    backend = stores.open()
    found = list(check.findings(backend, sys.argv[1:], os.environ, stores.given.get("config")))
    if json:
        _json(check.as_json(backend, found))
    else:
        _print(check.table(backend, found))
    return check.status(found)


def _key(stores: Stores, name: str) -> int:
    _print(key.text(stores.open(name), name))
    return 0


def _metrics(stores: Stores, _name: str) -> int:
    backend = stores.open()
    names = sorted(backend.names(clock.now() + backend.timeout))
    _print(metrics.text([status.look(backend, name) for name in names]))
    return 0


def _print(text: str) -> None:
    """At once: `metrics > file && mv file …` must hear of a full disk."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise errors.unwritten(error) from None


def _json(value: Mapping[str, object]) -> None:
    from json import dumps

    _print(dumps(value, indent=2))


def _confirmed(question: str) -> bool:
    try:
        return input(f"{question} [y/N]: ").strip().lower() in ("y", "yes")
    except (EOFError, RuntimeError):  # nobody is there, as in a crontab; RuntimeError: it is closed
        print()
        raise errors.UsageError("nobody answered, so nothing was taken away: --yes does not ask") from None


JSON = Option("json", "flag", "for programs; docs/cronlockctl.md has the schema", "", False)
MAX_AGE = Option("max-age", "duration", "monitoring plugin: 0 if it succeeded so recently, 1 warning, 2 not", "", None, "DURATION")
YES = Option("yes", "flag", "do not ask", "y", False)

VERBS = {
    "status": Verb(_status, "Who holds what. Since when, and is that usual; with NAME all about it.", "optional", (JSON, MAX_AGE)),
    "history": Verb(_history, "How the last runs went. Oldest first, with what each took.", "needed", (JSON,)),
    "release": Verb(_release, "Take a lock from its holder. Its command is stopped and ends as lost.", "needed", (YES,)),
    "check": Verb(_check, "What would go wrong in production. A line each; 0 nothing, 1 warnings, 2 trouble.", "", (JSON,)),
    "key": Verb(_key, "The same lock in SQL, redis-cli or flock(1).", "needed"),
    "metrics": Verb(_metrics, "All locks as Prometheus reads them."),
}
