"""click's view of the options: help, the version, completion, and errors in words. A plain run never comes here."""

from __future__ import annotations

import os
from contextlib import suppress

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem, shell_complete

from cronlock import __version__, clock, durations, errors
from cronlock.arguments import COMPLETE
from cronlock.config import Config, load, settle
from cronlock.options import FLOCK_ONLY, OPTIONS, Option, convert
from cronlock.registry import open_backend

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

EPILOG = """\b
Exit status: the command's own; 128+N if signal N ended it; 75 skipped (-E);
76 lock lost; 124 --max-runtime; 126, 127 not executable, not found; 64 usage;
69 backend unavailable; 70 internal; 77 permission; 78 configuration.
Every option can be set by CRONLOCK_ and its name in capitals: CRONLOCK_TTL=5m."""


def parse(argv: Sequence[str]) -> tuple[dict[str, Any], list[str]] | None:
    """As arguments.plain, by click. None: help or the version was asked for, and is printed."""
    try:
        context = command().make_context("cronlock", list(argv))
    except (click.exceptions.Exit, BrokenPipeError):  # a reader of --help that has read enough is nobody's defect
        return None
    except OSError as error:
        raise errors.unwritten(error) from None
    except click.ClickException as error:
        raise errors.UsageError(_in_our_words(error)) from None
    words = [*context.params.pop("words")]
    given = {key: value for key, value in context.params.items() if context.get_parameter_source(key) is ParameterSource.COMMANDLINE}
    return given, words


def complete(instruction: str) -> int:
    """What the scripts in share/ ask for at each TAB."""
    return shell_complete(command(), {}, "cronlock", COMPLETE, instruction)


def parameter(option: Option) -> click.Option:
    names = [f"-{letter}" for letter in option.letters] + [f"--{n}" for n in (option.name, *option.aliases)]
    if option.kind == "flag":
        return click.Option([*names, option.key], is_flag=True, help=_help(option))
    metavar = option.metavar or "|".join(option.choices)
    return click.Option([*names, option.key], type=_Kind(option), metavar=metavar, multiple=option.kind == "words", help=_help(option))


def command() -> click.Command:
    words = click.Argument(["words"], nargs=-1, type=click.UNPROCESSED, metavar="NAME COMMAND [ARG]...", shell_complete=_name_then_command)
    made = click.Command(
        "cronlock",
        params=[*map(parameter, OPTIONS), words],
        help="Run COMMAND while holding the lock NAME, so that of all servers that fire this crontab line one runs it.",
        epilog=EPILOG,
        context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"], "max_content_width": 80},
    )
    return click.version_option(__version__, "-V", "--version", prog_name="cronlock", message="%(prog)s %(version)s")(made)


def names(given: Mapping[str, Any], incomplete: str) -> list[str]:
    """Lock names that begin so: the config's and the store's, if it answers at once."""
    found: set[str] = set()
    with suppress(errors.CronlockError):
        found.update(_config(given).locks)
        values, _ = settle({key: value for key, value in given.items() if value}, "", os.environ)
        backend = open_backend(values["backend"])
        found.update(backend.names(clock.now() + min(1.0, backend.timeout)))
        backend.close()
    return sorted(name for name in found if name.startswith(incomplete) and name.isprintable())  # one that is not would stop them all


def _config(given: Mapping[str, Any]) -> Config:
    return load(given.get("config") or os.environ.get("CRONLOCK_CONFIG"), os.environ)


class _Kind(click.ParamType):  # type: ignore[type-arg] # generic since click 8.4 only
    def __init__(self, option: Option) -> None:
        self.option, self.name = option, option.metavar or option.kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return convert(self.option, value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
        if self.option.metavar == "FILE":
            return [CompletionItem(incomplete, type="file")]
        known = [*self.option.choices]
        if self.option.name == "backend":
            with suppress(errors.CronlockError):
                known = [*_config(ctx.params).backends]
        return [CompletionItem(word) for word in known if word.startswith(incomplete)]


def _name_then_command(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    typed = len(context.params.get("words") or ())
    if not typed:
        return [CompletionItem(name) for name in names(context.params, incomplete)]
    if typed > 1 or "/" in incomplete:
        return [CompletionItem(incomplete, type="file")]
    programs: set[str] = set()
    for directory in os.environ.get("PATH", "").split(":"):
        with suppress(OSError):
            programs.update(
                entry.name for entry in os.scandir(directory) if entry.name.startswith(incomplete) and os.access(entry, os.X_OK)
            )
    return [CompletionItem(program) for program in sorted(programs)]


def _help(option: Option) -> str:
    default = option.default
    if option.kind in ("duration", "wait") and default is not None:
        default = durations.show(default)
    return option.help if default in (None, False, ()) else f"{option.help}  [{default}]"


def _in_our_words(error: click.ClickException) -> str:
    if isinstance(error, click.NoSuchOption):
        for word, advice in FLOCK_ONLY.items():
            if error.option_name == word:
                return f"{word}: {advice}"
        near = f", did you mean {error.possibilities[0]}?" if error.possibilities else " (options go before NAME, see cronlock --help)"
        return f"no option {error.option_name}{near}"
    return error.format_message().rstrip(".")
