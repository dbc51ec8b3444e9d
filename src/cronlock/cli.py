"""`cronlock`: argv and environment -> Job -> run -> exit status. The only function that hands a number to the OS."""

from __future__ import annotations

import gc

gc.disable()  # before the other imports: in one short life, collecting costs a fifth of the start and frees nothing that matters

import os
import sys
import time
from contextlib import suppress

import click

from cronlock import __version__, clock, durations, errors, exits, observers, periods
from cronlock.local import lately, mark
from cronlock.model import Event, Job, Outcome
from cronlock.options import FLOCK_ONLY, OPTIONS, Option, convert, from_environment
from cronlock.registry import open_backend
from cronlock.run import run
from cronlock.usual import LEAST, overdue, usual

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any, NoReturn

    from cronlock.heartbeat import Heartbeat
    from cronlock.protocol import Backend
    from cronlock.tail import Tail
    from cronlock.usual import Usual

HOUR = 3600.0  # seconds between two warnings of an overdue holder on one host

USAGE = "cronlock [OPTIONS] NAME COMMAND [ARG]..."
EPILOG = """\b
Exit status: the command's own; 128+N if signal N ended it; 75 skipped (-E);
76 lock lost; 124 --max-runtime; 126, 127 not executable, not found; 64 usage;
69 backend unavailable; 70 internal; 77 permission; 78 configuration.
Every option can be set by CRONLOCK_ and its name in capitals: CRONLOCK_TTL=5m."""

SEEN_BY_PS = (
    "the backend's password is on the command line, where every user's ps shows it: use CRONLOCK_BACKEND, ?password_file= or .pgpass"
)

BACKGROUND = "the shell puts the command in the background (a & at the end, or &> in a shell that is not bash), so the lock goes at once"


def main() -> NoReturn:
    """The console script."""
    _own_descriptors()
    status = start(sys.argv[1:], _inherited(os.environ))
    if sys.stdout:  # None when the caller closed it
        with suppress(OSError, ValueError):
            sys.stdout.flush()
    os._exit(status)  # skips taking apart what the kernel frees anyway: 100 ms with psycopg loaded


def start(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """The exit status of one command line."""
    heartbeat: Heartbeat | None = None
    observe: observers.Observer | None = None
    try:
        values, words = parse(argv, environ)
        if values is None:
            return 0  # --help or --version was answered
        job, url = understand(values, words, environ)
        observe = observers.Observer(job.name, **{key: values[key] for key in ("verbose", "quiet", "log_format", "syslog")})
        heartbeat, tail = monitored(job, observe) if job.heartbeat else (None, None)
        backend = open_backend(url)
        outcome = run(job, backend, heartbeat.observe if heartbeat else observe, tail)
        if outcome.ran:  # not on a skip: N-1 servers would mail it every tick
            for doubt in doubts(argv, words, job, url):
                observe(doubt)
    except errors.CronlockError as error:
        (observe or observers.Observer(""))(observers.of_error(error))
        if heartbeat and isinstance(error, errors.CommandError):
            heartbeat.finish(Outcome("failed", error.code, detail=str(error)))
        return exits.status(error)
    except errors.Interrupted as error:
        return exits.status(error)
    except KeyboardInterrupt:
        return exits.SIGNAL + 2
    except Exception as error:  # a defect of ours: one line for cron's mail, the whole story with -v
        if "-v" in argv or "CRONLOCK_VERBOSE" in environ:
            raise
        text = f"internal error, please report it: {type(error).__name__} in {_where(error)} (-v shows the whole story)"
        (observe or observers.Observer(""))(Event("error", "trouble", text, {"status": exits.INTERNAL}))
        return exits.INTERNAL
    status = finish(outcome, job, backend, observe)
    if heartbeat:
        heartbeat.finish(outcome)
    if tail:
        tail.settle()
    return status


def monitored(job: Job, observe: Callable[[Event], None]) -> tuple[Heartbeat, Tail | None]:
    """Imported only here: a line without --heartbeat pays nothing for it. UsageError for a URL that is none."""
    from cronlock.heartbeat import Heartbeat

    tail = None
    if job.heartbeat_output:
        from cronlock.tail import Tail

        tail = Tail(job.heartbeat_output)
    return Heartbeat(job.heartbeat, job.name, job.heartbeat_timeout, observe, tail.ring if tail else None), tail


def finish(outcome: Outcome, job: Job, backend: Backend, observe: observers.Observer) -> int:
    status = exits.status(outcome, job.conflict_code)
    known, late = in_the_way(outcome, job, backend, observe) if outcome.answer else (None, False)
    observe(observers.of_outcome(outcome, known, overdue=late, status=status))
    return status


def in_the_way(outcome: Outcome, job: Job, backend: Backend, observe: observers.Observer) -> tuple[Usual | None, bool]:
    """What is usual for the run that a skipped start met, and whether to warn of it: one read more, and only if somebody
    hears of it, or the holder has run for so long that a warning may be due, and none was given here within the hour."""
    run = outcome.answer.run if outcome.answer else None
    if run is None or run.outcome == "released":
        return None, False
    what = f"overdue {backend.where} {job.name}"
    going = outcome.word == "busy" and not run.outcome and clock.wall() - run.start > LEAST
    warn = going and observe.tells("warning") and not lately(what, HOUR)
    if not warn and not observe.tells("contention"):
        return None, False
    known = None
    with suppress(errors.CronlockError):
        known = usual(backend.history(job.name, clock.now() + min(2.0, backend.timeout)))
    return known, warn and overdue(run, known, clock.wall()) and mark(what)


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[dict[str, Any] | None, list[str]]:
    """The options' values (argv beats environment beats default) and the words after them. None: click answered itself."""
    command = _click_command(from_environment(environ))
    try:
        context = command.make_context("cronlock", list(argv))
    except click.exceptions.Exit:
        return None, []
    except click.ClickException as error:
        raise errors.UsageError(_in_our_words(error, argv)) from None
    return dict(context.params), [*context.params.pop("words")]


def understand(values: Mapping[str, Any], words: Sequence[str], environ: Mapping[str, str]) -> tuple[Job, str]:
    """The Job that options and words mean, and the backend's URL."""
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
        for key in ("max_runtime", "min_hold", "warn_after", "heartbeat"):
            if values[key]:
                raise errors.UsageError(f"-F leaves no cronlock to see to --{key.replace('_', '-')}: drop one of the two")
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
        **_period(values, environ),
        on_lost=values["on_lost"],
        on_unavailable=values["on_unavailable"],
        heartbeat=values["heartbeat"],
        heartbeat_output=values["heartbeat_output"],
        heartbeat_timeout=values["heartbeat_timeout"],
        environ={k: v for k, v in environ.items() if k != "CRONLOCK_HEARTBEAT"},  # its token is none of the command's business
    )
    return job, values["backend"]


def _period(values: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """What --once-per and its companions mean for this start, by this host's clock now: before jitter, delay and waiting."""
    once_per, prefer = values["once_per"], values["prefer"]
    if once_per is None:
        for key in ("retry_failed", "prefer"):
            if values[key]:
                raise errors.UsageError(f"--{key.replace('_', '-')} needs --once-per: without a period there is nothing to hold it against")
        return {}
    seconds = periods.check(once_per)
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
    if any(ord(c) < 32 or ord(c) == 127 for c in name):
        raise errors.UsageError(f"the lock NAME {name!r} contains a control character")


def _no_command(name: str) -> str:
    if name in ("status", "history", "release", "check", "key", "metrics"):
        return f"no COMMAND after the lock name {name!r}: did you mean cronlockctl {name}?"
    if name.isdigit():
        return f"no COMMAND after {name}: cronlock does not lock file descriptors, put it before the command: cronlock NAME COMMAND"
    return f"no COMMAND after the lock name {name!r}: {USAGE} (a % in a crontab line cuts it off)"


def _shell(environ: Mapping[str, str]) -> str:
    return environ.get("SHELL") or "/bin/sh"


def _inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """What cronlock was started with. Python's start adds LC_CTYPE in the C locale (PEP 538); the first environment block,
    which the kernel keeps, tells whether it did."""
    inherited = dict(environ)
    if inherited.get("LC_CTYPE") in ("C.UTF-8", "C.utf8", "UTF-8"):
        with suppress(OSError), open("/proc/self/environ", "rb") as file:
            if b"\0LC_CTYPE=" not in b"\0" + file.read():
                del inherited["LC_CTYPE"]
    return inherited


def _own_descriptors() -> None:
    """0, 1 and 2 must be taken, or a lock would get one of these numbers. Not inheritable: for the command they stay closed."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open("/dev/null", os.O_RDWR)


def doubts(argv: Sequence[str], words: Sequence[str], job: Job, url: str) -> Iterator[Event]:
    """What is legal and probably not meant."""
    if _password_in(argv, url):
        yield Event("password", "warning", SEEN_BY_PS)
    by_string = job.command[0] not in words  # the shell of -c STRING was not typed
    if by_string and _backgrounds_itself(job.command[2], job.command[0]):
        yield Event("background", "warning", BACKGROUND)


def _password_in(argv: Sequence[str], url: str) -> bool:
    authority = url.partition("://")[2].partition("/")[0]
    return ":" in authority.rpartition("@")[0] and any(url in word for word in argv)


def _where(error: BaseException) -> str:
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    return f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}" if trace else "?"


def _backgrounds_itself(string: str, shell: str) -> bool:
    end = string.rstrip()
    return (end.endswith("&") and not end.endswith("&&")) or ("&>" in end and os.path.basename(shell) in ("sh", "dash"))


class _Kind(click.ParamType):  # type: ignore[type-arg] # generic since click 8.4 only
    def __init__(self, option: Option) -> None:
        self.option, self.name = option, option.metavar or option.kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        return convert(self.option, value)


def _click_command(environment: Mapping[str, Any]) -> click.Command:
    parameters: list[click.Parameter] = []
    for option in OPTIONS:
        names = [f"-{letter}" for letter in option.letters] + [f"--{n}" for n in (option.name, *option.aliases)]
        common = {"default": environment.get(option.key, option.default), "help": _help(option)}
        if option.kind == "words":
            parameters.append(click.Option([*names, option.key], multiple=True, metavar=option.metavar, **common))
        elif option.kind == "flag":
            parameters.append(click.Option([*names, option.key], is_flag=True, **common))
        else:
            metavar = option.metavar or "|".join(option.choices)
            parameters.append(click.Option([*names, option.key], type=_Kind(option), metavar=metavar, **common))
    parameters.append(click.Argument(["words"], nargs=-1, type=click.UNPROCESSED, metavar="NAME COMMAND [ARG]..."))
    command = click.Command(
        "cronlock",
        params=parameters,
        help="Run COMMAND while holding the lock NAME, so that of all servers that fire this crontab line one runs it.",
        epilog=EPILOG,
        context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"], "max_content_width": 80},
    )
    return click.version_option(__version__, "-V", "--version", prog_name="cronlock", message="%(prog)s %(version)s")(command)


def _help(option: Option) -> str:
    default = option.default
    if option.kind in ("duration", "wait") and default is not None:
        default = durations.show(default)
    return option.help if default in (None, False, ()) else f"{option.help}  [{default}]"


def _in_our_words(error: click.ClickException, argv: Sequence[str]) -> str:
    if isinstance(error, click.NoSuchOption):
        for word, advice in FLOCK_ONLY.items():
            if error.option_name == word:
                return f"{word}: {advice}"
        near = f", did you mean {error.possibilities[0]}?" if error.possibilities else " (options go before NAME, see cronlock --help)"
        return f"no option {error.option_name}{near}"
    return error.format_message().rstrip(".")
