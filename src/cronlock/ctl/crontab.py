"""`cronlockctl check` on crontabs: each line that starts cronlock is read as cron, the shell and cronlock will read it."""

from __future__ import annotations

import os
import pwd
import re
import shlex

from cronlock import errors, exits
from cronlock.arguments import doubts, plain, understand
from cronlock.config import settle
from cronlock.ctl.ttl import lease
from cronlock.heartbeat_url import parse
from cronlock.local import username
from cronlock.model import Finding
from cronlock.registry import open_backend

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    Text = tuple[str, str, str]  # a crontab: where it is, what it says, whose it is ('': each line names a user)
    Line = tuple[str, dict[str, str], str]  # where it stands, cron's environment for it, the command up to the line's end


def findings(crontabs: Sequence[Text]) -> Iterator[Finding]:
    """Of the lines that run as the caller; root sees all. Nothing if none of them starts cronlock."""
    me = username()
    seen, fine = 0, 0
    for place, text, user in crontabs:
        lines = [line for line in entries(text, place, user) if me in ("root", line[1]["LOGNAME"])]
        for where, cron, command in lines:
            if not user and not _home(cron["LOGNAME"]):
                seen += 1
                nobody = f"{where}: there is no user {cron['LOGNAME']!r}, so Debian's cron ignores the whole file"
                yield Finding("trouble", "crontab", nobody, "before the command goes the user, here and in /etc/crontab")
                continue
            if command.endswith("\r"):
                seen += 1
                cr = f"{where}: the line ends with CR LF, and cron makes the CR part of the command"
                yield Finding("trouble", "crontab", cr, "save the file with LF alone")
                continue
            for argv, own, cut in commands(command):
                found = list(traps(argv, cron | own, cut))
                seen, fine = seen + 1, fine + (not found)
                yield from (Finding(one.level, "crontab", f"{where}: {one.text}", one.remedy) for one in found)
        if lines and not user and not text.endswith("\n"):  # crontab(1) takes none like that
            seen += 1
            torn = f"{place}: no newline at its end: Debian's cron ignores the whole file"
            yield Finding("trouble", "crontab", torn, "end its last line")
    if seen and seen == fine:
        yield Finding("ok", "crontab", f"{seen} lines with cronlock, nothing wrong")


def entries(text: str, place: str, user: str = "") -> Iterator[Line]:
    """Crontab lines. Without `user` each names its own."""
    variables: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if setting := re.fullmatch(r"""\s*(["']?)([A-Za-z_]\w*)\1\s*=\s*(.*?)\s*""", line):
            variables[setting[2]] = setting[3][1:-1] if re.fullmatch(r"'.*'|\".*\"", setting[3]) else setting[3]
            continue
        before = (1 if line.lstrip().startswith("@") else 5) + (not user)
        fields = line.split(None, before)
        ours = " ".join(fields[-1 if user else -2 :])
        if not line.lstrip().startswith("#") and len(fields) > before and re.search(r"\bcronlock\b", ours):
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
            if word.startswith("#"):
                break
            if set(word) <= set("();<>|&"):
                inside, variables = False, {}
            elif inside:
                found[-1][0].append(word)
            elif os.path.basename(word) == "cronlock" and not os.path.isdir(word):  # cd /opt/cronlock
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
        if (found := plain(argv) or _explained(argv)) is None:
            return  # --help
        given, words = found
        values, sources = settle(given, words[0] if words else "", environ)
        without_zone = {key: value for key, value in environ.items() if key != "CRON_TZ"}  # it would be ours, too
        job, url = understand(values, words, without_zone, given)
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


def _explained(argv: Sequence[str]) -> tuple[dict[str, Any], list[str]] | None:
    from cronlock import manual  # click, whose import takes longer than all that is fine does

    return manual.parse(argv)


def _home(user: str) -> str:
    """Empty: there is no such user."""
    try:
        return pwd.getpwnam(user).pw_dir
    except KeyError:
        return ""
