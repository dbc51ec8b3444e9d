"""`cronlockctl check` on crontabs: each line that starts cronlock is read as cron, the shell and cronlock will read it."""

from __future__ import annotations

import os
import pwd
import re
import shlex
import subprocess
from contextlib import suppress

from cronlock import durations, errors, exits, manual
from cronlock.arguments import doubts, plain, understand
from cronlock.config import settle
from cronlock.heartbeat_url import parse
from cronlock.model import Finding
from cronlock.registry import open_backend

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Line = tuple[str, dict[str, str], str]  # where it stands, cron's environment for it, the command up to the line's end

SYSTEM = ("/etc/crontab", "/etc/cron.d")  # a user name stands before the command there


def findings() -> Iterator[Finding]:
    seen, fine = 0, 0
    for where, environ, text in _lines():
        for argv, own, cut in commands(text):
            found = list(traps(argv, environ | own, cut))
            seen, fine = seen + 1, fine + (not found)
            yield from (Finding(one.level, "crontab", f"{where}: {one.text}", one.remedy) for one in found)
    if seen == fine:
        yield Finding("ok", "crontab", f"{seen} lines with cronlock, nothing wrong" if seen else "no line here starts cronlock")


def _lines() -> Iterator[Line]:
    """Of the caller's crontab, and of the system's those that run as the caller; root sees all of these."""
    me = pwd.getpwuid(os.geteuid()).pw_name
    with suppress(OSError, subprocess.TimeoutExpired):
        own = subprocess.run(["crontab", "-l"], capture_output=True, text=True, errors="surrogateescape", timeout=5)
        yield from entries(own.stdout, "crontab -l", me)
    places = [
        os.path.join(at, name) for at in SYSTEM if os.path.isdir(at) for name in sorted(os.listdir(at)) if re.fullmatch(r"[\w-]+", name)
    ]
    for path in [*SYSTEM, *places]:
        with suppress(OSError), open(path, errors="surrogateescape") as file:
            yield from (line for line in entries(file.read(), path) if me in ("root", line[1]["LOGNAME"]))


def entries(text: str, place: str, user: str = "") -> Iterator[Line]:
    """Crontab lines. Without `user` each names its own."""
    variables: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if setting := re.fullmatch(r"\s*([A-Za-z_]\w*)\s*=\s*(.*?)\s*", line):
            variables[setting[1]] = setting[2][1:-1] if re.fullmatch(r"'.*'|\".*\"", setting[2]) else setting[2]
            continue
        fields = line.split(None, (1 if line.lstrip().startswith("@") else 5) + (not user))
        if not line.lstrip().startswith("#") and re.search(r"\bcronlock\b", fields[-1] if fields else ""):
            who = user or fields[-2]
            yield f"{place}:{number}", {"SHELL": "/bin/sh", "LOGNAME": who, "HOME": _home(who)} | variables, fields[-1]


def commands(text: str) -> Iterator[tuple[list[str], dict[str, str], bool]]:
    """The words of each cronlock in a command, the variables set before it, and whether a % cut it off."""
    before = re.split(r"(?<!\\)%", text, maxsplit=1)[0]
    words = shlex.shlex(before.replace(r"\%", "%"), posix=True, punctuation_chars=True)
    words.whitespace_split, words.commenters = True, ""
    found: list[tuple[list[str], dict[str, str]]] = []
    cut = before != text and before.endswith("+")  # date +%F; what follows a % may also be meant, as standard input
    inside, variables = False, dict[str, str]()
    try:
        for word in words:
            if set(word) <= set("();<>|&"):
                inside, variables = False, {}
            elif inside:
                found[-1][0].append(word)
            elif os.path.basename(word) == "cronlock":
                inside = True
                found.append(([], variables))
            elif setting := re.fullmatch(r"(CRONLOCK_\w+)=(.*)", word):
                variables[setting[1]] = setting[2]
    except ValueError:  # a quote that nothing closes
        cut = before != text
    yield from ((argv, variables, cut) for argv, variables in found)


def traps(argv: Sequence[str], environ: Mapping[str, str], cut: bool) -> Iterator[Finding]:
    if cut:
        yield Finding("trouble", "crontab", "cron ends the command at the first %, and makes a newline of it", r"write \% for each")
        return
    try:
        found = plain(argv) or manual.parse(argv)
        if found is None:
            return  # --help
        given, words = found
        values, sources = settle(given, words[0] if words else "", environ)
        job, url = understand(values, words, {key: value for key, value in environ.items() if key != "CRON_TZ"})  # it would be ours, too
        for nth, monitor in enumerate(job.heartbeat, 1):
            parse(monitor, nth)
        open_backend(url).close()
    except errors.CronlockError as error:
        shell = (*argv, *(value for name, value in environ.items() if name.startswith("CRONLOCK_")))
        if not any("$" in word or "`" in word for word in shell):  # what the shell puts there is not known here
            yield Finding("trouble", "crontab", str(error), f"until then the line ends with status {exits.status(error)}")
        return
    yield from (Finding("warning", "crontab", doubt.text) for doubt in doubts(sources, words, job, url))
    if (doubt := lease(job.ttl, job.kill_after)).level != "ok":
        yield doubt


def lease(ttl: float, kill_after: float) -> Finding:
    grace = min(kill_after, ttl / 4)
    text = f"ttl {durations.show(ttl)}, renewed every {durations.show(ttl / 3)}; on a loss {durations.show(grace)} from TERM to KILL"
    if grace < kill_after:
        short = f"a quarter of the ttl is shorter than --kill-after {durations.show(kill_after)}"
        return Finding("warning", "ttl", text, f"{short}: a command that needs that long needs --ttl {durations.show(4 * kill_after)}")
    if ttl < 10:
        return Finding("warning", "ttl", text, "a pause of a few seconds (load, network) costs the lock: --ttl 30s or more")
    return Finding("ok", "ttl", text)


def _home(user: str) -> str:
    try:
        return pwd.getpwnam(user).pw_dir
    except KeyError:
        return "/"
