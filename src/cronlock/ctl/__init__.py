"""`cronlockctl`: for people and dashboards. A verb is a function of values to text; only `release` disturbs a lock."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

import click

from cronlock import __version__, clock, errors, exits, manual, observers
from cronlock.config import settle
from cronlock.ctl import check, history, key, metrics, release, status
from cronlock.durations import parse
from cronlock.options import OPTIONS, convert
from cronlock.registry import open_backend

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import NoReturn

    from cronlock.protocol import Backend

BY_NAME = {option.name: option for option in OPTIONS}
UNKNOWN = 3  # of a monitoring plugin that could not find out


def main() -> NoReturn:
    """The console script."""
    code = start(sys.argv[1:])
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(code)  # as cronlock does: 100 ms with psycopg loaded


def start(argv: list[str]) -> int:
    try:
        return commands.main(argv, "cronlockctl", standalone_mode=False) or 0
    except click.exceptions.Exit as left:
        return left.exit_code
    except click.Abort:
        return exits.SIGNAL + 2
    except click.ClickException as error:
        observers.say(error.format_message(), "cronlockctl")
        return exits.USAGE
    except errors.CronlockError as error:
        observers.say(str(error), "cronlockctl")
        return exits.status(error)
    except BrokenPipeError:
        os.dup2(os.open("/dev/null", os.O_WRONLY), 1)
        return 0
    except Exception as error:  # a defect of ours
        observers.say(f"internal error, please report it: {type(error).__name__}: {error}", "cronlockctl")
        return exits.INTERNAL


@click.group(
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
    help="See who holds which lock, since when, and how the last runs ended. Disturbs nothing, release aside.",
)
@click.option("-b", "--backend", metavar="URL", help="where the locks live, as for cronlock  [flock:]")
@click.option("--config", metavar="FILE", help="read this config instead of the usual ones")
@click.version_option(__version__, "-V", "--version", prog_name="cronlockctl", message="%(prog)s %(version)s")
@click.pass_context
def commands(context: click.Context, backend: str | None, config: str | None) -> int | None:
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
        return exits.USAGE
    words = {"backend": backend, "config": config}
    context.obj = Stores({key: convert(BY_NAME[key], word) for key, word in words.items() if word is not None})
    context.call_on_close(context.obj.close)
    return None


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


def duration(_context: click.Context, _parameter: click.Parameter, text: str | None) -> float | None:
    try:
        return parse(text) if text else None
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def complete(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    return manual.names(context.find_root().params, incomplete)


@commands.command("status", help="Who holds what. Since when, and is that usual; with NAME all about it.")
@click.argument("name", required=False, shell_complete=complete)
@click.option("--json", "as_json", is_flag=True, help="for programs; docs/cronlockctl.md has the schema")
@click.option("--max-age", metavar="DURATION", callback=duration, help="monitoring plugin: 0 if it succeeded so recently, 1 warning, 2 not")
@click.pass_obj
def _status(stores: Stores, name: str | None, as_json: bool, max_age: float | None) -> int:
    backend = stores.open(name or "")
    try:
        names = [name] if name else sorted(backend.names(clock.now() + backend.timeout))
        found = [status.look(backend, one) for one in names]
    except (errors.BackendError, errors.PermissionDenied, errors.ConfigError) as error:
        if max_age is None:
            raise
        click.echo(f"UNKNOWN: {error}")
        return UNKNOWN
    code, lines = status.verdict(found, max_age) if max_age is not None else (0, [])
    if as_json:
        _json(status.as_json(backend, found))
    elif lines:
        click.echo("\n".join(lines))
    else:
        click.echo(status.page(found[0]) if name else status.table(found))
    if max_age is None and name and found[0].state == "free":
        return status.FREE
    return code


@commands.command("history", help="How the last runs went. Oldest first, with what each took.")
@click.argument("name", shell_complete=complete)
@click.option("--json", "as_json", is_flag=True, help="for programs; docs/cronlockctl.md has the schema")
@click.pass_obj
def _history(stores: Stores, name: str, as_json: bool) -> int:
    backend = stores.open(name)
    runs = backend.history(name, clock.now() + backend.timeout)
    if as_json:
        _json(history.as_json(backend, name, runs))
    else:
        click.echo(history.table(runs))
    return 0


@commands.command("release", help="Take a lock from its holder. Its command is stopped and ends as lost.")
@click.argument("name", shell_complete=complete)
@click.option("-y", "--yes", is_flag=True, help="do not ask")
@click.pass_obj
def _release(stores: Stores, name: str, yes: bool) -> int:
    backend = stores.open(name)
    run, text = release.holder(backend, name)
    click.echo(text)
    if run is None:
        return 1
    if not yes and not click.confirm("Take it away? Its command will be stopped."):
        return 1
    click.echo(release.release(backend, name, run))
    return 0


@commands.command("check", help="What would go wrong in production. A line each; 0 nothing, 1 warnings, 2 trouble.")
@click.option("--json", "as_json", is_flag=True, help="for programs; docs/cronlockctl.md has the schema")
@click.pass_obj
def _check(stores: Stores, as_json: bool) -> int:
    backend = stores.open()
    found = list(check.findings(backend, sys.argv[1:], os.environ, stores.given.get("config")))
    if as_json:
        _json(check.as_json(backend, found))
    else:
        click.echo(check.table(backend, found))
    return check.status(found)


@commands.command("key", help="The same lock in SQL, redis-cli or flock(1).")
@click.argument("name", shell_complete=complete)
@click.pass_obj
def _key(stores: Stores, name: str) -> int:
    click.echo(key.text(stores.open(name), name))
    return 0


@commands.command("metrics", help="All locks as Prometheus reads them.")
@click.pass_obj
def _metrics(stores: Stores) -> int:
    backend = stores.open()
    names = sorted(backend.names(clock.now() + backend.timeout))
    click.echo(metrics.text([status.look(backend, name) for name in names]))
    return 0


def _json(value: Mapping[str, object]) -> None:
    import json

    click.echo(json.dumps(value, indent=2))
