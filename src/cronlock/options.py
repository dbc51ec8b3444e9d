"""Every option of `cronlock`, once: parser, click's command, environment, config, manual and completions are made of it."""

from __future__ import annotations

from cronlock import durations, periods
from cronlock.errors import UsageError
from cronlock.model import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class Option(Value):
    name: str  # the long form without dashes; CRONLOCK_ + it in capitals is the variable
    kind: str  # flag, text, words (repeatable), duration, size, wait (inf allowed), status, choice
    help: str
    letters: str = ""
    default: Any = None
    metavar: str = ""
    aliases: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    least: float = 0.0  # seconds

    @property
    def key(self) -> str:
        return self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        return "CRONLOCK_" + self.key.upper()


OPTIONS = (
    Option("backend", "text", "where the lock lives", "b", "flock:", "URL"),
    Option("ttl", "duration", "how long the lock outlives a vanished holder; renewed every third", "t", 60.0, "DURATION", least=1.0),
    Option("nonblock", "flag", "skip if somebody else holds the lock (the default)", "n", False, aliases=("nb",)),
    Option("exclusive", "flag", "accepted for flock's sake: every lock is exclusive", "xe", False),
    Option("wait", "wait", "wait up to this long for the lock; inf: for ever", "w", 0.0, "DURATION", aliases=("timeout",)),
    Option("conflict-exit-code", "status", "exit status when the command was skipped, 0-255", "E", 75, "N"),
    Option("command", "text", "run STRING with the shell", "c", None, "STRING"),
    Option("close", "flag", "accepted for flock's sake: the command never inherits the lock", "o", False),
    Option("no-fork", "flag", "become the command, which then holds the lock itself (local file locks only)", "F", False),
    Option("once-per", "period", "start at most once per period, whoever runs it", "", None, "DURATION", least=1.0),
    Option("retry-failed", "flag", "with --once-per: a run that did not end well does not use up its period", "", False),
    Option("prefer", "words", "with --once-per: these hosts try at once, all others after the delay", "", (), "HOST"),
    Option("standby-delay", "duration", "how long the hosts that --prefer does not name hold back", "", 5.0, "DURATION"),
    Option("min-hold", "duration", "keep others out at least this long, counted from the start", "", 0.0, "DURATION"),
    Option("max-runtime", "duration", "then TERM to the whole tree, then KILL", "", None, "DURATION", least=0.001),
    Option("kill-after", "duration", "between TERM and KILL", "", 10.0, "DURATION"),
    Option("warn-after", "duration", "warn when it still runs then; unless given 3 times the usual; 0: never", "", None, "DURATION"),
    Option("on-lost", "choice", "when the lock is gone, or nobody can tell", "", "terminate", choices=("terminate", "continue")),
    Option("on-unavailable", "choice", "when the backend can't be reached", "", "fail", choices=("fail", "skip", "run")),
    Option("jitter", "duration", "sleep a random time up to this before the first attempt", "", 0.0, "DURATION"),
    Option("heartbeat", "words", "tell this monitor that the command started, and how it ended", "", (), "URL"),
    Option("heartbeat-output", "size", "send the last SIZE bytes of the command's output along", "", 0, "SIZE"),
    Option("heartbeat-timeout", "duration", "the most that monitors may keep cronlock, after the release", "", 10.0, "DURATION", least=0.1),
    Option("log-format", "choice", "events on stderr: for people, or all of them as JSON", "", "text", choices=("text", "json")),
    Option("syslog", "flag", "all events to syslog as well, as cronlock", "", False),
    Option("verbose", "flag", "tell the whole story", "v", False),
    Option("quiet", "flag", "errors only", "q", False),
    Option("config", "text", "read this instead of /etc/cronlock.toml and ~/.config/cronlock/config.toml", "", None, "FILE"),
)

FLAGS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
FLOCK_ONLY = {
    "-s": "there are no shared locks: every lock is exclusive",
    "--shared": "there are no shared locks: every lock is exclusive",
    "-u": "nothing to unlock: the lock goes when the command ends (cronlockctl shows who holds one)",
    "--unlock": "nothing to unlock: the lock goes when the command ends (cronlockctl shows who holds one)",
}


def convert(option: Option, text: str, source: str = "") -> Any:
    """The value of `text`. UsageError that names `source` (the option as written, or a variable)."""
    source = source or f"--{option.name}"
    try:
        if option.kind == "flag":
            return FLAGS[text.lower()]
        if option.kind in ("duration", "wait", "period"):
            seconds = durations.parse(text, inf=option.kind == "wait")
            if seconds < option.least:
                raise ValueError(f"{text!r} is too short: at least {durations.show(option.least)}")
            return periods.check(seconds) if option.kind == "period" else seconds
        if option.kind == "size":
            return durations.size(text)
        if option.kind == "status":
            if not (text.isascii() and text.isdigit() and len(text) < 6 and int(text) <= 255):
                raise ValueError(f"{text!r} is no exit status: a whole number from 0 to 255")
            return int(text)
        if option.kind == "choice" and text not in option.choices:
            raise ValueError(f"{text!r} is none of {', '.join(option.choices)}")
    except ValueError as error:
        raise UsageError(f"{source}: {error}") from None
    except KeyError:
        raise UsageError(f"{source}: {text!r} is none of 1, 0, yes, no") from None
    if not text:
        wanted = "a URL such as flock: or redis://host/0" if option.name == "backend" else "a value"
        raise UsageError(f"{source} is empty: give {wanted}")
    return text


def from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """The options that CRONLOCK_… variables set, converted."""
    found = {}
    for option in OPTIONS:
        if option.variable in environ:
            value = convert(option, environ[option.variable], option.variable)
            if option.kind == "words":
                value = tuple((value if option.metavar == "URL" else value.replace(",", " ")).split())  # a URL may hold commas
            found[option.key] = value
    return found
