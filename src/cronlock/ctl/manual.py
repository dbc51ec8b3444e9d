"""click's view of cronlockctl: help, the version, completion, and errors in words."""

from __future__ import annotations

import click

from cronlock import __version__, errors, exits, manual, observers
from cronlock.arguments import check_name
from cronlock.ctl import VERBS, WHERE, Verb, call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


def answer(argv: Sequence[str]) -> int:
    try:
        return commands.main(list(argv), "cronlockctl", standalone_mode=False) or 0
    except click.exceptions.Exit as left:
        return left.exit_code
    except click.Abort:
        return exits.SIGNAL + 2
    except click.ClickException as error:
        observers.say(error.format_message(), "cronlockctl")
        return exits.USAGE
    except SystemExit:  # what click makes of a reader that has read enough; completion ends so, too
        return 0
    except OSError as error:
        raise errors.unwritten(error) from None


def complete(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    return manual.names(context.find_root().params, incomplete)


def _command(name: str, verb: Verb) -> click.Command:
    def run(name: str | None = None, **options: Any) -> int:
        if name is not None:
            check_name(name)
        asked = {key: value for key, value in options.items() if value is not None}
        return call(verb, click.get_current_context().find_root().obj, name or "", asked)

    parameters: list[click.Parameter] = []
    if verb.name:
        parameters.append(click.Argument(["name"], required=verb.name == "needed", shell_complete=complete))
    return click.Command(name, callback=run, params=[*parameters, *map(manual.parameter, verb.options)], help=verb.help)


def _group(**given: Any) -> int | None:
    context = click.get_current_context()
    context.obj = {key: value for key, value in given.items() if value is not None}
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
        return exits.USAGE
    return None


commands = click.version_option(__version__, "-V", "--version", prog_name="cronlockctl", message="%(prog)s %(version)s")(
    click.Group(
        "cronlockctl",
        commands={name: _command(name, verb) for name, verb in VERBS.items()},
        callback=_group,
        params=[*map(manual.parameter, WHERE)],
        invoke_without_command=True,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
        help="See who holds which lock, since when, and how the last runs ended. Disturbs nothing, release aside.",
    )
)
