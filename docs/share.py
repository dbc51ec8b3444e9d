"""Writes share/, which the wheel installs as it is: man pages from the option table, click's verbs and the pages beside this
file; completions from the option table. `python docs/generate.py` calls it; tests/test_share.py fails if it was forgotten."""

from __future__ import annotations

import re
from pathlib import Path

import click
import generate

from cronlock import __version__, durations
from cronlock.ctl.manual import commands
from cronlock.options import OPTIONS, Option

DOCS = Path(__file__).parent
SHARE = DOCS.parent / "share"
MADE = "made by docs/generate.py from docs/share.py: change that"

FILES = """
| file | what it is |
|---|---|
| `/etc/cronlock.toml`, `~/.config/cronlock/config.toml` | the config files, see cronlock.toml(5) |
| `/var/lib/cronlock`, `~/.local/state/cronlock` | root's and other users' locks, states and histories, where `flock:` names no directory |
| `NAME.lock` | the lock; what it holds is the claim state. Not to be deleted |
| `NAME.runs` | the history |
"""

CRONLOCK_EXAMPLES = """
One of all servers that have this line runs it:

    CRONLOCK_BACKEND=redis://redis.internal/0
    */5 * * * *  cronlock import-orders /opt/shop/bin/import-orders

Once a day, wherever the clocks are; tried again until it has worked:

    */10 * * * *  cronlock --once-per 1d --retry-failed dump /opt/shop/bin/dump

Wait for the run before, stop a run that takes too long:

    * * * * *  cronlock -w 30s --max-runtime 5m mail-queue /opt/shop/bin/send-mail

A shell command; a crontab wants each `%` as `\\%`:

    0 2 * * *  cronlock dump -c 'pg_dump shop >/backup/shop-$(date +\\%F).sql'

Hold a job back for maintenance, on all servers:

    cronlock -w inf import-orders sleep 2h
"""

CTL_EXAMPLES = """
    cronlockctl status
    cronlockctl -b redis://redis.internal/0 history import-orders
    cronlockctl status import-orders --max-age 26h
    cronlockctl release --yes import-orders
"""

CTL_EXITS = """
| status | meaning |
|---|---|
| 0 | nothing to complain of; with `status NAME`: it is held |
| 1, 2 | `check`: warnings, trouble; `status --max-age`: warning, critical; `release`: 1, nobody has it, or the answer was no |
| 3 | `status NAME`: it is free; `status --max-age`: the store could not be asked |
| 64, 69, 70, 77, 78 | as cronlock(1) |
"""


TOML_EXITS = """
78 for an unknown key, a value that is none, or what is no TOML. 77 for a file that can't be read, or that others can change,
or that others can read while a URL in it has a password. The command does not run.
"""

TOML_VARIABLES = """
`CRONLOCK_CONFIG` names a file that is read in place of both, as `--config` does. `XDG_CONFIG_HOME` is where the user's is,
instead of `~/.config`.
"""


def section(page: str, heading: str = "") -> str:
    """The Markdown below `## heading`, or what stands above the first such."""
    parts = re.split(r"^## (.*)\n", (DOCS / page).read_text(), flags=re.M)
    return parts[0].partition("\n\n")[2] if not heading else parts[parts.index(heading) + 1]


def cronlock() -> str:
    synopsis, _, description = generate.HEAD.partition("# Command line\n")[2].partition("\n\nThe first word")
    rules, described = generate.TAIL.partition("## ")[0], generate.TAIL
    return man(
        "cronlock.1",
        "run a command while holding a lock that servers share",
        {
            "SYNOPSIS": synopsis,
            "DESCRIPTION": "Of all servers that fire the same line, one runs COMMAND.\n\nThe first word" + description,
            "OPTIONS": [*map(option, OPTIONS), *roff(rules)],
            "THE COMMAND": described.partition("## What the command gets\n")[2].partition("## ")[0],
            "SIGNALS": described.partition("## Signals\n")[2],
            "EXIT STATUS": section("exits.md"),
            "ENVIRONMENT": section("configuration.md", "Environment variables").partition("\n\nWhat cronlock")[0],
            "FILES": FILES,
            "EXAMPLES": CRONLOCK_EXAMPLES,
            "SEE ALSO": "cronlockctl(1), cronlock.toml(5), flock(1), crontab(5), systemd.timer(5)",
        },
    )


def cronlockctl() -> str:
    verbs = [line for name, command in sorted(commands.commands.items()) for line in verb(name, command)]
    options = [
        term(", ".join(f"`{o}`" for o in p.opts) + f" {p.metavar or ''}", p.help or "")
        for p in commands.params
        if isinstance(p, click.Option)
    ]
    details = "".join(f"## {name}\n{section('cronlockctl.md', name)}" for name in ("status", "history", "release", "check", "JSON"))
    return man(
        "cronlockctl.1",
        "see who holds which lock, since when, and how the last runs ended",
        {
            "SYNOPSIS": "    cronlockctl [-b URL] VERB [NAME]",
            "DESCRIPTION": section("cronlockctl.md").partition("\n\n")[2].partition("<!--")[0],
            "OPTIONS": options,
            "VERBS": [*verbs, *roff(details)],
            "EXIT STATUS": CTL_EXITS,
            "ENVIRONMENT": "`CRONLOCK_BACKEND`, `CRONLOCK_CONFIG`, `NO_COLOR` and all that finds the store, as for cronlock(1).",
            "FILES": FILES,
            "EXAMPLES": CTL_EXAMPLES,
            "SEE ALSO": "cronlock(1), cronlock.toml(5)",
        },
    )


def toml() -> str:
    keys = [one for one in OPTIONS if one.name != "config"]
    return man(
        "cronlock.toml.5",
        "backends, defaults and settings of single locks for cronlock(1)",
        {
            "SYNOPSIS": "    /etc/cronlock.toml\n    ~/.config/cronlock/config.toml",
            "DESCRIPTION": section("configuration.md") + section("configuration.md", "The config file"),
            "KEYS": [term(f"`{one.name}` = {kind(one)}", one.help) for one in keys],
            "VARIABLES": section("configuration.md", "Variables in the file"),
            "PASSWORDS": section("configuration.md", "Passwords"),
            "EXIT STATUS": TOML_EXITS,
            "ENVIRONMENT": TOML_VARIABLES,
            "FILES": "`/etc/cronlock.toml`, and laid over it `~/.config/cronlock/config.toml`.",
            "EXAMPLES": "See above. `cronlockctl check` prints what is in force, and where each value comes from.",
            "SEE ALSO": "cronlock(1), cronlockctl(1)",
        },
    )


def option(one: Option) -> str:
    """Its paragraph in cronlock(1)."""
    names = ", ".join(f"`{name}`" for name in spelled(one))
    default = durations.show(one.default) if one.kind in ("duration", "wait") and one.default is not None else one.default
    given = "" if default in (None, False, ()) else f" Default: `{default}`."
    value = " " + (one.metavar or "|".join(one.choices)) if one.kind != "flag" else ""
    return term(names + value, f"{one.help[0].upper()}{one.help[1:]}.{given} Variable: `{one.variable}`.")


def spelled(one: Option) -> list[str]:
    return [f"-{letter}" for letter in one.letters] + [f"--{name}" for name in (one.name, *one.aliases)]


def kind(one: Option) -> str:
    if one.choices:
        return " | ".join(f'"{choice}"' for choice in one.choices)
    shown = {
        "flag": "true | false",
        "words": f'["{one.metavar}", …]',
        "duration": '"DURATION" | seconds',
        "period": '"DURATION" | seconds',
        "wait": '"DURATION" | seconds',
        "status": "N",
    }
    return shown.get(one.kind, f'"{one.metavar}"')


def verb(name: str, command: click.Command) -> list[str]:
    words = [f"[{p.name}]" if not p.required else p.name or "" for p in command.params if isinstance(p, click.Argument)]
    lines = [term(" ".join([f"`{name}`", *(word.upper() for word in words)]), command.help or "")]
    for p in command.params:
        if isinstance(p, click.Option):
            lines += [".RS", term(", ".join(f"`{o}`" for o in p.opts) + f" {p.metavar or ''}", p.help or ""), ".RE"]
    return lines


# Markdown, as far as the pages use it, to man(7)


def man(file: str, about: str, sections: dict[str, str | list[str]]) -> str:
    name, _, number = file.rpartition(".")
    lines = [f'.\\" {MADE}', ".nr HY 0", ".ad l", f'.TH {name.upper()} {number} "" "cronlock {__version__}" "cronlock"']
    lines += [".SH NAME", f"{name} \\- {about}"]
    for heading, content in sections.items():
        lines += [f'.SH "{heading}"', *(roff(content) if isinstance(content, str) else content)]
    return "\n".join(lines) + "\n"


def term(what: str, about: str) -> str:
    return f".TP\n{inline(what.strip())}\n{inline(about) or '.'}"


def roff(text: str) -> list[str]:
    text = re.sub(r"<!--.*?-->\n?", "", text)
    text = re.sub(
        r"^```\w*\n(.*?)^```$", lambda found: re.sub("^", "    ", found[1].rstrip("\n"), flags=re.M) + "\n", text, flags=re.S | re.M
    )
    lines: list[str] = []
    for block in re.split(r"\n(?:[ ]*\n)+(?!    )|\n(?=[-\d]\.? )|(?<=\n)(?=## )", text.strip("\n")):
        if block.startswith("## "):
            heading, _, block = block[3:].partition("\n")
            lines.append(f'.SS "{inline(heading)}"')
        if not block.strip():
            continue
        if block.startswith("    "):
            lines += [".PP", ".RS 4", ".EX", *(verbatim(line[4:]) for line in block.split("\n")), ".EE", ".RE"]
        elif "\n    " in block and not block.startswith("-"):  # a paragraph, and code right below it
            before, _, code = block.partition("\n    ")
            lines += [*roff(before), *roff("    " + code)]
        elif block.startswith("|"):
            lines += table(block)
        elif found := re.match(r"(-|\d\.) ", block):
            bullet = r"\(bu" if found[1] == "-" else found[1]
            lines += [f".IP {bullet} 4", inline(" ".join(block[2:].split()))]
        else:
            lines += [".PP", inline(" ".join(block.split()))]
    return lines


def table(block: str) -> list[str]:
    """A paragraph for each row: its first cell, and the others below it with their headings if there are several."""
    headings, _, *rows = (
        [cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in block.strip().splitlines()
    )
    lines = []
    for first, *others in rows:
        facts = [
            f". {heading[:1].upper()}{heading[1:].rstrip('?')}: {cell}"
            for heading, cell in zip(headings[1:-1], others, strict=False)
            if cell
        ]
        lines.append(term(first, (others[-1] + "".join(facts)).removeprefix(". ")))
    return lines


def inline(text: str) -> str:
    text = re.sub(r"\[([^]]+)\]\([^)\s]+\.md[^)]*\)", r"\1", text)
    pieces = re.split(r"`([^`]+)`", text)
    return guarded(
        "".join(rf"\fB{verbatim(piece)}\fR" if odd % 2 else escaped(piece.replace("**", "")) for odd, piece in enumerate(pieces))
    )


def verbatim(text: str) -> str:
    return guarded(escaped(text).replace("-", r"\-"))


def escaped(text: str) -> str:
    text = text.replace("\\", r"\e").replace("'", r"\(aq").replace("^", r"\(ha").replace("~", r"\(ti").replace("`", r"\(ga")
    return "".join(c if c.isascii() else rf"\[u{ord(c):04X}]" for c in text)


def guarded(line: str) -> str:
    return r"\&" + line if line.startswith((".", "'")) else line


# Completions. Options, their values and lock names come from the program, by click's protocol (manual.py); what stands after
# NAME is another command, and the shell knows how to complete that.

LONG = [name for one in OPTIONS if one.kind != "flag" for name in spelled(one) if name.startswith("--")]
SHORT = {
    "FLAGS": "".join(one.letters for one in OPTIONS if one.kind == "flag"),
    "VALUED": "".join(one.letters for one in OPTIONS if one.kind != "flag"),
}

BASH_ASK = """\
_PROGRAM_ask()
{
    local line # not click's own script: to that a URL ends at each colon
    while IFS= read -r line; do
        case $line in
            plain,*) COMPREPLY+=("$(printf %q "${line#*,}")") ;;
            file,*) _filedir ;;
        esac
    done < <(env COMP_WORDS="${words[*]}" COMP_CWORD=$cword _VARIABLE_COMPLETE=bash_complete "$1" 2>/dev/null)
    __ltrim_colon_completions "$cur"
}
"""

BASH_CTL = """
_cronlockctl()
{
    local cur words cword
    _get_comp_words_by_ref -n =: cur words cword
    _cronlockctl_ask "$1"
}
complete -F _cronlockctl cronlockctl
"""

BASH_CRONLOCK = """
_cronlock()
{
    local cur words cword name word at piece
    _get_comp_words_by_ref -n =: cur words cword
    for ((name = 1; name < cword; name++)); do
        word=${words[name]}
        case $word in
            --) ((++name)) && break ;;
            LONG) ((++name)) ;;
            --*) ;;
            -*) [[ $word != -*([FLAGS])[VALUED] ]] || ((++name)) ;;
            *) break ;;
        esac
    done
    if ((name >= cword)); then
        _cronlock_ask "$1"
        return
    fi
    [[ ${words[name + 1]} != -- ]] || ((++name))
    for ((at = 0, word = 0; word <= name; word++)); do # as COMP_WORDS counts, where a colon ends a word
        for ((piece = ${#words[word]}; piece > 0; at++)); do ((piece -= ${#COMP_WORDS[at]})); done
    done
    _command_offset $at
}
complete -F _cronlock cronlock
"""

ZSH_CTL = """\
if (( ! $+functions[_PROGRAM_completion] )); then
    eval "$(_VARIABLE_COMPLETE=zsh_source PROGRAM)"
    compdef _PROGRAM PROGRAM # eval has bound click's function
fi
"""

ZSH_CRONLOCK = """
local name
for (( name = 2; name < CURRENT; name++ )); do
    case $words[name] in
        (--) (( ++name )) && break ;;
        (LONG) (( ++name )) ;;
        (--*) ;;
        (-*) [[ $words[name] == -[FLAGS]#[VALUED] ]] && (( ++name )) ;;
        (*) break ;;
    esac
done
if (( name >= CURRENT )); then
    _cronlock_completion
else
    [[ $words[name+1] == -- ]] && (( name + 1 < CURRENT )) && (( ++name ))
    shift $name words
    (( CURRENT -= name ))
    _normal -p cronlock
fi
"""

FISH_CTL = """\
_VARIABLE_COMPLETE=fish_source PROGRAM | source
"""

FISH_CRONLOCK = """
function __cronlock
    set -l words (commandline -opc)
    set -l name 2
    while test $name -le (count $words)
        switch $words[$name]
            case --
                set name (math $name + 1)
                break
            case LONG
                set name (math $name + 1)
            case '--*'
            case '-*'
                string match -qr '^-[FLAGS]*[VALUED]$' -- $words[$name]
                and set name (math $name + 1)
            case '*'
                break
        end
        set name (math $name + 1)
    end
    if test $name -gt (count $words)
        _cronlock_completion
        return
    end
    test "$words[$(math $name + 1)]" = --
    and set name (math $name + 1)
    set -l command (string escape -- $words[(math $name + 1)..]) (commandline -ct)
    complete -C "$command"
end

complete -c cronlock -e # click's
complete -c cronlock -f -a '(__cronlock)'
"""


def completion(text: str, program: str = "cronlock", between: str = "|") -> str:
    values = {"LONG": between.join(LONG), **SHORT, "PROGRAM": program, "VARIABLE": program.upper()}
    return re.sub("LONG|FLAGS|VALUED|PROGRAM|VARIABLE", lambda found: values[found[0]], text)


def files() -> dict[str, str]:
    """What belongs below share/, by path."""
    return {
        "man/man1/cronlock.1": cronlock(),
        "man/man1/cronlockctl.1": cronlockctl(),
        "man/man5/cronlock.toml.5": toml(),
        "bash-completion/completions/cronlock": f"# {MADE}\n" + completion(BASH_ASK + BASH_CRONLOCK),
        "bash-completion/completions/cronlockctl": f"# {MADE}\n" + completion(BASH_ASK + BASH_CTL, "cronlockctl"),
        "zsh/site-functions/_cronlock": f"#compdef cronlock\n# {MADE}\n" + completion(ZSH_CTL + ZSH_CRONLOCK),
        "zsh/site-functions/_cronlockctl": f"#compdef cronlockctl\n# {MADE}\n"
        + completion(ZSH_CTL + "_PROGRAM_completion\n", "cronlockctl"),
        "fish/vendor_completions.d/cronlock.fish": f"# {MADE}\n" + completion(FISH_CTL + FISH_CRONLOCK, between=" "),
        "fish/vendor_completions.d/cronlockctl.fish": f"# {MADE}\n" + completion(FISH_CTL, "cronlockctl"),
    }


def write() -> None:
    for path, text in files().items():
        (SHARE / path).parent.mkdir(parents=True, exist_ok=True)
        (SHARE / path).write_text(text)
