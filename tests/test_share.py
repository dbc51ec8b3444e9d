"""share/: man pages and completions, as they are made, and as man and the shells take them."""

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from importlib import import_module

import pytest

from cronlock import exits
from cronlock.arguments import plain
from cronlock.ctl.manual import commands
from cronlock.options import OPTIONS
from cronlock.testing import poll
from pages import ROOT

SHARE = ROOT / "share"
MAN = sorted((SHARE / "man").rglob("*.?"))
BASH = "/usr/share/bash-completion/bash_completion"


def need(program, package):
    if not shutil.which(program) and not os.path.exists(program):
        (pytest.fail if os.environ.get("CI") == "true" and os.geteuid() == 0 else pytest.skip)(f"needs Debian's package {package}")


@pytest.fixture(scope="module")
def share():
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        yield import_module("share")
    finally:
        sys.path.remove(str(ROOT / "docs"))


def test_share_is_fresh(share):
    kept = {path.relative_to(SHARE).as_posix(): path.read_text() for path in SHARE.rglob("*") if path.is_file()}
    assert kept == share.files(), "run python docs/generate.py"


def rendered(page):
    need("groff", "groff-base")
    done = subprocess.run(["groff", "-man", "-ww", "-Tutf8", "-P-cbou", page], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("page", MAN, ids=lambda page: page.name)
def test_a_man_page_is_whole_and_has_no_warning(page):
    text = rendered(page)
    headings = re.findall(r"^[A-Z][A-Z ]+$", text, re.M)
    assert {"NAME", "SYNOPSIS", "DESCRIPTION", "EXIT STATUS", "ENVIRONMENT", "FILES", "EXAMPLES", "SEE ALSO"} <= {*headings}
    assert "`" not in text and "](" not in text and "**" not in text and "|---" not in text  # no Markdown is left
    name, number = page.name.rsplit(".", 1)
    assert text.startswith(f"{name.upper()}({number})")


def test_man_shows_them(tmp_path):
    need("man", "man-db")
    for page in MAN:
        environ = {**os.environ, "MANPATH": str(SHARE / "man"), "MANWIDTH": "80", "HOME": str(tmp_path), "MANPAGER": "cat"}
        done = subprocess.run(["man", "--warnings", page.stem], env=environ, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert "EXIT STATUS" in done.stdout


def test_every_option_verb_and_status_has_its_place_in_the_man_pages():
    command, verbs, toml = (
        rendered(next(page for page in MAN if page.stem == stem)) for stem in ("cronlock", "cronlockctl", "cronlock.toml")
    )
    for option in OPTIONS:
        assert re.search(rf"^ +(-., )*--{option.name}\b", command, re.M) and option.variable in command
        assert option.name == "config" or re.search(rf"^ +{option.name} = ", toml, re.M)
    for verb in commands.commands:
        assert re.search(rf"^ +{verb}\b", verbs, re.M)
    for number in {value for value in vars(exits).values() if isinstance(value, int)} - {exits.SIGNAL}:
        assert str(number) in command.partition("EXIT STATUS")[2]


def test_every_example_in_the_man_page_is_a_command_line(share):
    shown = re.findall(r"^    .*?(cronlock(?:ctl)? .*)", share.CRONLOCK_EXAMPLES + share.CTL_EXAMPLES, re.M)
    assert len(shown) == 9
    for line in shown:
        program, *argv = shlex.split(line.replace(r"\%", "%"))
        if program == "cronlock":
            done = plain(argv)
            assert done and len(done[1]) > 1, line
        else:
            commands.make_context("cronlockctl", argv, resilient_parsing=True)


# Completions

# what is typed before TAB, and what then stands there; the last word but for --
TYPED = [
    ("cronlock --max-r", "--max-runtime"),
    ("cronlock --on-lost te", "terminate"),
    ("cronlock --config $HOME/c.toml -b mai", "main"),
    ("cronlock nigh", "nightly"),
    ("cronlock -nt 5m --once-per 1h nigh", "nightly"),
    ("cronlock tw", "two words"),
    ("cronlock -b flock://$HOME/locks shop:im", "shop:import"),
    ("cronlock job stand-in-pro", "stand-in-program"),
    ("cronlock -b redis://a:1/0 job -- stand-in-pro", "stand-in-program"),
    ("cronlock -v job cat some-f", "some-file"),
    ("cronlock --ttl=5m -w 5 shop:import cronlockctl histo", "history"),  # the command's own completion
    ("cronlockctl stat", "status"),
    ("cronlockctl -b flock://$HOME/locks history shop:im", "shop:import"),
    ("cronlockctl status --max", "--max-age"),
]


@pytest.fixture
def home(tmp_path):
    """A user's environment; the backend that it names has three locks."""
    programs = os.path.dirname(sys.executable)
    environ = {
        "HOME": str(tmp_path),
        "PATH": f"{tmp_path}/bin:{programs}:/usr/bin:/bin",
        "XDG_DATA_DIRS": f"{SHARE}:/usr/share",
        "CRONLOCK_BACKEND": f"flock://{tmp_path}/locks",
        "TERM": "dumb",
        "LC_ALL": "C.UTF-8",
    }
    for name in ("nightly", "shop:import", "two words"):
        subprocess.run([f"{programs}/cronlock", name, "true"], env=environ, check=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/stand-in-program").write_text("#!/bin/sh\n")
    (tmp_path / "bin/stand-in-program").chmod(0o755)
    (tmp_path / "some-file").touch()
    (tmp_path / "c.toml").write_text('[backends]\nmain = "flock:"\n')
    return environ


def in_bash(home):
    need("bash", "bash")
    need(BASH, "bash-completion")
    with open(f"{home['HOME']}/rc", "w") as file:
        file.write(f". {BASH}\nPS1='ready> '\nbind 'set bell-style none'\n")
    return at_a_terminal(home, "bash", "--noprofile", "--rcfile", "rc", "-i")


def in_zsh(home):
    need("zsh", "zsh")
    with open(f"{home['HOME']}/.zshrc", "w") as file:
        file.write(f"fpath=({SHARE}/zsh/site-functions $fpath)\nautoload -Uz compinit\ncompinit -u\nPS1='ready> '\nbindkey -e\n")
    return at_a_terminal(home, "zsh", "-i")


def at_a_terminal(home, *argv):
    """What stands on the lines after TAB: each is made printf's arguments. A real shell at a real terminal."""
    where, out = home["HOME"], f"{home['HOME']}/out"
    master, terminal = os.openpty()
    shell = subprocess.Popen(["setsid", "-c", *argv], cwd=where, env=home, stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    try:
        for line, _ in TYPED:
            said = b""
            while b"ready> " not in said:
                said += os.read(master, 4096)
            # ^A, ^E: the beginning and the end of the line
            os.write(master, line.replace("$HOME", where).encode() + b"\t\x01printf '%s\\n' \x05 >new; mv new out\r")
            poll(lambda: os.path.exists(out))
            with open(out) as file:
                yield file.read().splitlines()[-1]
            os.unlink(out)
    finally:
        shell.kill()
        shell.wait()
        os.close(master)


def in_fish(home):
    """fish tells what it would offer; if that is one, it is what TAB inserts."""
    need("fish", "fish")
    asked = "; echo; ".join(f"complete -C '{line.replace('$HOME', home['HOME'])}'" for line, _ in TYPED)
    done = subprocess.run(["fish", "--private", "-c", asked], cwd=home["HOME"], env=home, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    return [re.sub(r"\t.*", "", offered.strip()) for offered in done.stdout.split("\n\n")]


@pytest.mark.parametrize("shell", [in_bash, in_zsh, in_fish])
def test_tab_completes(shell, home):
    assert list(shell(home)) == [completed for _, completed in TYPED]


def test_a_store_that_does_not_answer_keeps_nobody_waiting(home):
    """TAB is no place for the ten seconds that a job may wait."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        asking = {"_CRONLOCK_COMPLETE": "bash_complete", "COMP_WORDS": "cronlock ", "COMP_CWORD": "1"}
        environ = {**home, **asking, "CRONLOCK_BACKEND": f"redis://127.0.0.1:{silent.getsockname()[1]}/0"}
        start = time.monotonic()
        done = subprocess.run([os.path.dirname(sys.executable) + "/cronlock"], env=environ, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "\n", "")
    assert time.monotonic() - start < 5


def test_a_name_that_no_terminal_can_show_does_not_stop_the_others(home, tmp_path):
    for name in ("job", "\udcff"):
        (tmp_path / f"{name}.lock").touch()
    asking = {"_CRONLOCK_COMPLETE": "bash_complete", "COMP_WORDS": "cronlock ", "COMP_CWORD": "1"}
    environ = {**home, **asking, "CRONLOCK_BACKEND": f"flock://{tmp_path}", "PYTHONIOENCODING": "utf-8:strict"}
    done = subprocess.run([os.path.dirname(sys.executable) + "/cronlock"], env=environ, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("plain,job\n", "")
