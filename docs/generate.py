"""Writes cli.md, the tables of events.md, cronlockctl.md and monitoring.md, and share/ from the code: python docs/generate.py.
tests/test_docs.py and tests/test_share.py fail if it was forgotten."""

from __future__ import annotations

from pathlib import Path

import click

from cronlock import durations
from cronlock.ctl import metrics
from cronlock.ctl.manual import commands
from cronlock.observers import EVENTS, LEVELS
from cronlock.options import OPTIONS, Option

HEAD = """\
<!-- made by docs/generate.py from src/cronlock/options.py: change those -->
# Command line

    cronlock [OPTIONS] NAME COMMAND [ARG]...
    cronlock [OPTIONS] NAME -c 'SHELL COMMAND'
    cronlock [OPTIONS] -c 'SHELL COMMAND' NAME

The first word that is no option is NAME, and it ends the options. What follows is COMMAND, which gets its words
unchanged and through no shell. One `--` before NAME or before COMMAND is dropped. `NAME -- -c x` runs a program
called `-c`.

`-c` runs one string with `$SHELL`, or `/bin/sh` if that is not set. cron sets SHELL to `/bin/sh`.

NAME has 1 to 200 characters, none of them a control character. With a file backend an absolute path is that file or
directory itself; a relative path with a slash is refused, because cron starts jobs in another directory than your shell.

DURATION: `90`, `90s`, `1.5m`, `2h`, `1d`, `1h30m`. SIZE: `10000`, `64k`, `1m`. Anything else is a
usage error that shows the form.

Each option also has an environment variable, and a key of its name in the [config file](configuration.md). The command line beats the
environment, the environment beats the file, the file beats the default. A flag's variable is `1` or `0` (or `yes`, `no`,
`true`, `false`, `on`, `off`).

"""
TAIL = """
Also `-h`, `--help`, `-V` and `--version`.

`-n` with a `-w` other than 0 contradict each other, as do `-v` and `-q`: usage errors, if both stand in the same place; else the one that
[is nearer to the line](configuration.md) wins. `--retry-failed` and `--prefer` want `--once-per`, and `--standby-delay` wants `--prefer`,
where they stand on the line: above it or in a config file they are for those lines that they concern.

`-F` is for local file locks, and is refused with `--max-runtime`, `--once-per`, `--min-hold`, `--warn-after` and `--heartbeat`, which
need a cronlock that stays, and on one line with `--kill-after` or `--on-lost`. Nor does anybody see how such a run ends: in
`cronlockctl` it is `vanished` as soon as it is over. [Heartbeats](heartbeats.md) explains those options.

## What the command gets

Environment, working directory, open descriptors and standard streams are the caller's, but for `CRONLOCK_HEARTBEAT`, which is not passed
on, and `--heartbeat-output`, which puts pipes in place of stdout and stderr. Added are:

| variable | meaning |
|---|---|
| `CRONLOCK_RUN_NAME` | NAME |
| `CRONLOCK_RUN_ID` | eight characters that name this run in log and history |
| `CRONLOCK_RUN_TOKEN` | the random token that owns the lock |
| `CRONLOCK_RUN_FENCE` | a number that is larger than in every earlier run of NAME, see [guarantees](guarantees.md) |
| `CRONLOCK_RUN_STORE` | the backend's URL without its password |
| `CRONLOCK_RUN_HELD` | the tokens of all runs around this one, its own last: a name nested in itself is refused by it |

With `--on-unavailable run` and no lock only `CRONLOCK_RUN_NAME` and `CRONLOCK_RUN_STORE` are set.

## Signals

TERM, INT, HUP, QUIT, USR1 and USR2 are passed to the command once, as themselves. TERM goes to its whole tree, and
after `--kill-after` KILL follows; a second TERM shortens the rest to 1 second. A signal that comes while cronlock waits
for the lock ends it with 128+N. A command that passes TERM on to its own child (`timeout`, another
cronlock) makes that child hear it twice.
What was ignored at the start (nohup) stays ignored. KILL on cronlock stops the command: its guard sees to that.
"""


def option_line(option: Option) -> str:
    names = [f"-{letter}" for letter in option.letters] + [f"--{name}" for name in (option.name, *option.aliases)]
    value = option.metavar or r"\|".join(option.choices)
    default = option.default
    if option.kind in ("duration", "wait") and default is not None:
        default = durations.show(default)
    given = "" if default in (None, False, ()) else f"`{default}`"
    spelled = ", ".join(f"`{name}`" for name in names) + (f" {value}" if value else "")
    return f"| {spelled} | {option.help} | {given} | `{option.variable}` |\n"


def cli() -> str:
    """The whole page."""
    return HEAD + "| option | meaning | default | variable |\n|---|---|---|---|\n" + "".join(map(option_line, OPTIONS)) + TAIL


def events() -> dict[str, str]:
    severities = {3: "err", 4: "warning", 6: "info"}
    return {
        "events": "| event | meaning |\n|---|---|\n" + "".join(f"| `{kind}` | {about} |\n" for kind, about in EVENTS.items()),
        "levels": "| level | text | syslog |\n|---|---|---|\n"
        + "".join(f"| `{level}` | {when} | {severities[severity]} |\n" for level, (when, severity) in LEVELS.items()),
    }


def verbs() -> dict[str, str]:
    lines = ["| verb | meaning |\n|---|---|\n"]
    for name, command in sorted(commands.commands.items()):
        lines.append(f"| `{name}` {' '.join(_argument(p) for p in command.params if isinstance(p, click.Argument))}| {command.help} |\n")
        for option in command.params:
            if isinstance(option, click.Option):
                value = f" {option.metavar}" if option.metavar else ""
                lines.append(f"| {', '.join(f'`{o}`' for o in option.opts)}{value} | {option.help} |\n")
    return {"verbs": "".join(lines)}


def _argument(argument: click.Parameter) -> str:
    name = (argument.name or "").upper()
    return f"{name} " if argument.required else f"[{name}] "


def measures() -> dict[str, str]:
    return {"metrics": "| metric | meaning |\n|---|---|\n" + "".join(f"| `{m}` | {about} |\n" for m, about in metrics.METRICS.items())}


def filled(page: str, tables: dict[str, str]) -> str:
    """The page with what stands between `<!-- made: NAME -->` and `<!-- end -->` made again."""
    text = Path(__file__).with_name(page).read_text()
    for name, table in tables.items():
        before, mark, rest = text.partition(f"<!-- made: {name} -->\n")
        _, end, after = rest.partition("<!-- end -->\n")
        if not mark or not end:
            raise ValueError(f"{page} has no place for {name}")
        text = before + mark + table + end + after
    return text


def pages() -> dict[str, str]:
    return {
        "cli.md": cli(),
        "events.md": filled("events.md", events()),
        "cronlockctl.md": filled("cronlockctl.md", verbs()),
        "monitoring.md": filled("monitoring.md", measures()),
    }


if __name__ == "__main__":
    for name, text in pages().items():
        Path(__file__).with_name(name).write_text(text)
    import share  # made from these pages, and from this module

    share.write()
