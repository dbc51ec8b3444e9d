"""argv -> the options that were given, the words after them, and the Job that all of it means.

`plain` reads what a crontab line holds: click finds the same (a property test holds both to it), but importing it costs
more than all else that a start on local files does. Whatever is not plain, a wrong option or --help, goes to click in manual.py.
"""

from __future__ import annotations

import os
import time

from cronlock import clock, durations, errors, periods
from cronlock.config import has_password
from cronlock.model import Event, Job
from cronlock.options import OPTIONS, convert

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence
    from typing import Any

    from cronlock.options import Option

COMPLETE = "_CRONLOCK_COMPLETE"  # click's variable for the completion of a program called cronlock
USAGE = "cronlock [OPTIONS] NAME COMMAND [ARG]..."
SEEN_BY_PS = (
    "the backend's password is on the command line, where every user's ps shows it: use CRONLOCK_BACKEND, the config file, "
    "?password_file= or .pgpass"
)
BACKGROUND = "the shell puts the command in the background (a & at the end, or &> in a shell that is not bash), so the lock goes at once"


def plain(argv: Sequence[str], options: Sequence[Option] = OPTIONS) -> tuple[dict[str, Any], list[str]] | None:
    """The options given, converted, by key; and the words after them. None: click has more to say."""
    known = {f"--{name}": option for option in options for name in (option.name, *option.aliases)}
    known |= {f"-{letter}": option for option in options for letter in option.letters}
    given: dict[Option, Any] = {}
    rest = list(argv)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        name, equals, value = word.partition("=")
        while not word.startswith("--") and word not in known:  # -nvt5m: flags, then one with its value
            flag = known.get(word[:2])
            if flag is None or flag.kind != "flag":
                name, equals, value = word[:2], "=", word[2:]
                break
            given[flag] = True
            name = word = "-" + word[2:]
            equals = ""
        option = known.get(name)
        if option is None or (option.kind == "flag" and equals):
            return None
        if option.kind == "flag":
            given[option] = True
            continue
        if not equals:
            if not rest:
                return None
            value = rest.pop(0)
        given[option] = (*given.get(option, ()), value) if option.kind == "words" else value
    return {option.key: _converted(option, value) for option, value in given.items()}, rest


def _converted(option: Option, value: str | bool | tuple[str, ...]) -> Any:
    if isinstance(value, tuple):
        return tuple(convert(option, one) for one in value)
    return value if isinstance(value, bool) else convert(option, value)


def understand(values: Mapping[str, Any], words: Sequence[str], environ: Mapping[str, str], given: Container[str] = ()) -> tuple[Job, str]:
    """The Job that options and words mean, and the backend's URL. `given`: the keys of those on the command line, which are meant
    for this run: there an option that could do nothing is an error."""
    string = values["command"]
    if not words:
        raise errors.UsageError(f"a lock NAME is missing: {USAGE}")
    name, rest = words[0], list(words[1:])
    if string is None and len(rest) >= 1 and rest[0] in ("-c", "--command"):
        if len(rest) != 2:
            raise errors.UsageError(f"{rest[0]} takes exactly one argument, the shell command in quotes: cronlock NAME -c 'a && b'")
        string, rest = rest[1], []
    elif rest[:1] == ["--"]:
        rest = rest[1:]
    if string is not None and rest:
        raise errors.UsageError("give either -c STRING or a COMMAND, not both")
    check_name(name)
    if string is None and not rest:
        raise errors.UsageError(_no_command(name))
    if rest and not rest[0]:
        raise errors.UsageError("the COMMAND is an empty word: is a variable unset?")
    command = (_shell(environ), "-c", string) if string is not None else tuple(rest)
    if values["no_fork"]:
        if not values["backend"].startswith(("flock:", "file:")):
            raise errors.UsageError("-F works with local file locks only: another store's lock needs cronlock to stay alive")
        asked = [key for key in ("max_runtime", "min_hold", "warn_after", "heartbeat") if values[key]]
        asked += [key for key in ("kill_after", "on_lost") if key in given]  # every run has these, perhaps set for the lines around
        if asked:
            raise errors.UsageError(f"-F leaves no cronlock to see to --{asked[0].replace('_', '-')}: drop one of the two")
    if "standby_delay" in given and not values["prefer"]:
        raise errors.UsageError("--standby-delay needs --prefer: without it no host holds back")
    if values["nonblock"] and values["wait"]:
        raise errors.UsageError("-n and -w contradict each other: -n does not wait")
    if values["verbose"] and values["quiet"]:
        raise errors.UsageError("-v and -q contradict each other")
    job = Job(
        name,
        command,
        ttl=values["ttl"],
        wait=values["wait"],
        conflict_code=values["conflict_exit_code"],
        no_fork=values["no_fork"],
        max_runtime=values["max_runtime"],
        kill_after=values["kill_after"],
        min_hold=values["min_hold"],
        warn_after=values["warn_after"],
        jitter=values["jitter"],
        **_period(values, environ, given),
        on_lost=values["on_lost"],
        on_unavailable=values["on_unavailable"],
        heartbeat=values["heartbeat"],
        heartbeat_output=values["heartbeat_output"],
        heartbeat_timeout=values["heartbeat_timeout"],
        environ={k: v for k, v in environ.items() if k != "CRONLOCK_HEARTBEAT"},  # its token is none of the command's business
    )
    return job, values["backend"]


def _period(values: Mapping[str, Any], environ: Mapping[str, str], given: Container[str]) -> dict[str, Any]:
    """What --once-per and its companions mean for this start, by this host's clock now: before jitter, delay and waiting."""
    seconds, prefer = values["once_per"], values["prefer"]
    if seconds is None:
        for key in ("retry_failed", "prefer"):
            if key in given:
                raise errors.UsageError(f"--{key.replace('_', '-')} needs --once-per: without a period there is nothing to hold it against")
        return {}
    if values["no_fork"]:
        raise errors.UsageError("-F leaves no cronlock to see to --once-per: drop one of the two")
    standby = 0.0
    if prefer and not {os.uname().nodename, os.uname().nodename.partition(".")[0]} & set(prefer):
        standby = values["standby_delay"]
    for key, delay in (("jitter", values["jitter"]), ("standby-delay", values["standby_delay"] if prefer else 0.0)):
        if delay >= seconds:
            raise errors.UsageError(f"--{key} {durations.show(delay)} must be shorter than --once-per {durations.show(seconds)}")
    if "CRON_TZ" in environ:
        os.environ["TZ"] = environ["CRON_TZ"]
        time.tzset()
    period = periods.period_of(clock.wall(), seconds)
    return {"label": period.label, "period_end": period.end, "retry_failed": values["retry_failed"], "standby": standby}


def check_name(name: str) -> None:
    """Any 1–200 characters but control characters."""
    if not name:
        raise errors.UsageError("the lock NAME is empty: is a variable unset?")
    if len(name) > 200:
        raise errors.UsageError(f"the lock NAME has {len(name)} characters, 200 is the most")
    if any(c < " " or "\x7f" <= c < "\xa0" for c in name):  # 0x9b is ESC [ to some terminals, 0x85 a new line to Python
        raise errors.UsageError(f"the lock NAME {name!r} contains a control character")


def _no_command(name: str) -> str:
    if name in ("status", "history", "release", "check", "key", "metrics"):
        return f"no COMMAND after the lock name {name!r}: did you mean cronlockctl {name}?"
    if name.isdigit():
        return f"no COMMAND after {name}: cronlock does not lock file descriptors, put it before the command: cronlock NAME COMMAND"
    return f"no COMMAND after the lock name {name!r}: {USAGE} (a % in a crontab line cuts it off)"


def _shell(environ: Mapping[str, str]) -> str:
    return environ.get("SHELL") or "/bin/sh"


def doubts(sources: Mapping[str, str], words: Sequence[str], job: Job, url: str) -> Iterator[Event]:
    """What is legal and probably not meant."""
    if sources["backend"] == "the command line" and has_password(url):
        yield Event("password", "warning", SEEN_BY_PS)
    by_string = job.command[0] not in words  # the shell of -c STRING was not typed
    if by_string and _backgrounds_itself(job.command[2], job.command[0]):
        yield Event("background", "warning", BACKGROUND)


def _backgrounds_itself(string: str, shell: str) -> bool:
    end = string.rstrip()
    return (end.endswith("&") and not end.endswith("&&")) or ("&>" in end and os.path.basename(shell) in ("sh", "dash"))
