"""`cronlockctl`: for people and dashboards. A verb is a function of values to an exit status; none of them disturbs a lock."""

from __future__ import annotations

import os
import sys

import click

from cronlock import __version__, clock, errors, exits, observers
from cronlock.ctl import history, key, status
from cronlock.options import OPTIONS, convert
from cronlock.registry import open_backend

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from cronlock.protocol import Backend

BACKEND = next(option for option in OPTIONS if option.name == "backend")


def main() -> NoReturn:
    """The console script."""
    try:
        code = commands.main(sys.argv[1:], "cronlockctl", standalone_mode=False)
    except click.exceptions.Exit as left:
        code = left.exit_code
    except click.Abort:
        code = exits.SIGNAL + 2
    except click.ClickException as error:
        observers.say(error.format_message(), "cronlockctl")
        code = exits.USAGE
    except errors.CronlockError as error:
        observers.say(str(error), "cronlockctl")
        code = exits.status(error)
    except BrokenPipeError:
        os.dup2(os.open("/dev/null", os.O_WRONLY), 1)
        code = 0
    sys.exit(code)


@click.group(
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
    help="See who holds which lock, since when, and how the last runs ended. Disturbs nothing.",
)
@click.option("-b", "--backend", "url", metavar="URL", help="where the locks live, as for cronlock  [flock:]")
@click.version_option(__version__, "-V", "--version", prog_name="cronlockctl", message="%(prog)s %(version)s")
@click.pass_context
def commands(context: click.Context, url: str | None) -> int | None:
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
        return exits.USAGE
    if url is None:
        url = os.environ.get(BACKEND.variable, BACKEND.default)
    context.obj = open_backend(convert(BACKEND, url))
    context.call_on_close(context.obj.close)
    return None


@commands.command("status", help="One line a lock: held or free, by whom, since when, how the last run ended.")
@click.argument("name", required=False)
@click.pass_obj
def _status(backend: Backend, name: str | None) -> int:
    until = clock.now() + backend.timeout
    names = [name] if name else sorted(backend.names(until))
    click.echo(status.table([backend.status(one, until) for one in names], clock.wall()))
    return 0


@commands.command("history", help="The last runs of a lock, oldest first.")
@click.argument("name")
@click.pass_obj
def _history(backend: Backend, name: str) -> int:
    click.echo(history.table(backend.history(name, clock.now() + backend.timeout)))
    return 0


@commands.command("key", help="What to type in SQL, redis-cli or flock(1) for the same lock.")
@click.argument("name")
@click.pass_obj
def _key(backend: Backend, name: str) -> int:
    click.echo(key.text(backend, name))
    return 0
