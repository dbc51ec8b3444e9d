"""Every command that the README, the pages and the crontab example show is run, by a real shell and against real servers.

A fenced block is what its language says. `sh` is a script that ends with 0. `console` is commands after `$ ` and what they
print, where `…` stands for anything. `crontab` and `cron.d` are lines that cron would start. Hosts and paths are replaced by
the test's own (see `Stage`), and commands that no machine has are stubs that note that they ran. `<!-- not run: WHY -->`
before a block excepts it, `<!-- file: PATH -->` makes it a file for the blocks below it. Other languages are read by
whoever reads them; a language that nobody knows fails.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

from fixtures_redis import RedisServer
from pages import PAGES, ROOT, Block, crontab, fences, indented, inline
from shell import Done, Shell, cronlock

BLOCKS = [block for page in PAGES for block in fences(page)]
EXAMPLE = ROOT / "examples/crontab.example"
RUN = ("sh", "console", "crontab", "cron.d")
READ = ("sql", "toml", "yaml", "python", "redis", "text")

# what the lines shown are meant to start
PROGRAMS = (
    *("pg_dump", "backup", "job", "docker", "ssh", "kubectl", "curl", "python", "x", "pg_basebackup", "timedatectl"),
    *(
        f"/opt/shop/bin/{name}"
        for name in ("invoices", "bill", "import", "import-orders", "send-mail", "sync", "sync-stock", "sync-prices")
    ),
    *(f"/opt/shop/bin/{name}" for name in ("dump", "report")),
    *(f"/opt/shop/bin/{name}" for name in ("thumbnails", "vacuum-carts", "worker", "rotate-logs", "nightly", "cleanup")),
    *("/opt/backup", "/etc/app/helper.sh", "/srv/x/watch.sh", "/srv/x/scrape", "/srv/x/all.sh", "/srv/x/job.sh", "/my/m.sh"),
    *("/home/u/bin/upload.sh", "/home/u/bin/sync.sh", "/home/u/night.sh", "/home/u/bin/start.sh", "/home/u/s.sh"),
    *("/usr/local/sbin/apt-mirror", "/srv/x/start.sh", "start.sh", "bin/report", "report.sh"),
)
# the same, for those that start another command
STARTERS = {"docker": "shift 2", "ssh": "shift", "kubectl": "shift 3"}
DIRECTORIES = (
    *("/opt/shop/log", "/backup", "/run/lock", "/var/lock", "/tmp", "/mnt/shared", "/srv/shop", "/srv/x/data"),
    *("/var/lib/node_exporter", "/etc/cronlock"),
)
OURS = (
    r"(?<![\w.~-])(/(?:opt|srv|backup|home|run/lock|var/(?:lock|cron\.lock|lib/node_exporter)|etc/(?:app|cronlock)|mnt|my|tmp|usr/local)\b)"
)


class Stage:
    """Where the lines are played: a root directory, stores and a monitor of the test's own under the names the pages use."""

    def __init__(self, shell: Shell, redis: str, guarded: str, postgresql: Callable[[], str], monitor: str) -> None:
        self.shell, self._redis, self._guarded, self._postgresql, self._monitor = shell, redis, guarded, postgresql, monitor
        self.root, self._ran = shell.home / "root", shell.home / "ran"
        self._ran.touch()
        self._ran.chmod(0o666)
        for directory in DIRECTORIES:
            (self.root / directory[1:]).mkdir(parents=True, exist_ok=True)
        self.bin = self.root / "usr/local/bin"
        for directory in (self.bin, self.root / "opt/cronlock/bin"):
            directory.mkdir(parents=True)
            for name in ("cronlock", "cronlockctl"):
                (directory / name).symlink_to(cronlock().with_name(name))
        for name in PROGRAMS:
            here = (self.root / name[1:],) if name.startswith("/") else (shell.T / name, shell.home / "home" / name)
            for path in here if "/" in name else (*here, self.bin / name):
                then = f'{STARTERS[name]}; exec "$@"' if name in STARTERS else ""
                shell.program(str(path), f'#!/bin/sh\necho "$0 $*" >>{self._ran}\n{then}\n')
        self.file("/etc/cronlock/redis.password", "top")
        self.file("~/.pgpass", "*:*:*:*:top")

    @property
    def ran(self) -> list[str]:
        return self._ran.read_text().splitlines()

    def ours(self, text: str) -> str:
        """`text` with the hosts, paths and host names of the pages replaced by those of the test."""
        text = re.sub(r"redis://(?:redis\.internal|host)(?:/0)?(?=\?password_file=)", self._guarded, text)
        text = re.sub(r"redis://(:\S+@)redis\.internal(?=/0)", rf"redis://\g<1>{self._guarded.removeprefix('redis://')}", text)
        text = re.sub(r"redis://(?:redis\.internal|host)(?:/0)?\b", self._redis, text)
        text = re.sub(r"postgresql://(?:\w+@)?db(?:\.internal)?/\w+", lambda _: self._postgresql(), text)
        text = re.sub(r"(nfs:///mnt/[\w/]+)", r"\1?allow_local=1", text)  # no share is mounted there
        text = re.sub(r"https?://[\w.-]+\.\w+(?=/)", self._monitor, text)
        text = re.sub(r"\bweb1\b", os.uname().nodename, text)
        text = re.sub(r"--jitter \w+", "--jitter 0.1s", re.sub(r"\bsleep \d+h", "sleep 0.1", text))
        return re.sub(OURS, lambda found: str(self.root) + found[1], text)

    def play(self, script: str, *, cron: bool = False, **variables: str) -> Done:
        path = f"{self.bin}:/usr/sbin:/usr/bin:/sbin:/bin"
        told = {"PATH": path, "CRONLOCK_BACKEND": f"flock://{self.shell.T}/locks"} | {k: self.ours(v) for k, v in variables.items()}
        script = self.ours(script)
        return self.shell.run(f'cd "$HOME"\n{script}' if cron else script, timeout=30, **told)

    def file(self, path: str, text: str) -> None:
        place = self.shell.home / "home" / path.removeprefix("~/") if path.startswith("~/") else Path(self.ours(path))
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(self.ours(text))
        place.chmod(0o600)


@pytest.fixture(scope="module")
def open_redis(start_redis: Callable[..., RedisServer]) -> RedisServer:
    return start_redis()


@pytest.fixture(scope="module")
def guarded_redis(start_redis: Callable[..., RedisServer]) -> RedisServer:
    """It wants the password `top`."""
    server = start_redis()
    server.cli("CONFIG", "SET", "requirepass", "top")
    return server


@pytest.fixture
def stage(open_redis: RedisServer, guarded_redis: RedisServer, monitor: Any, request: pytest.FixtureRequest) -> Iterator[Stage]:
    open_redis.cli("FLUSHALL")
    with redis.Redis(port=guarded_redis.port, password="top") as client:
        client.flushall()
    with Shell() as shell:
        urls = [server.url().rstrip("/") for server in (open_redis, guarded_redis)]
        yield Stage(shell, *urls, lambda: re.sub(r":\w+@", "@", request.getfixturevalue("postgresql_url")), monitor.url)


def above(block: Block) -> Iterator[tuple[str, str]]:
    for other in BLOCKS:
        if other.page == block.page and other.line < block.line and other.mark.startswith("file: "):
            yield other.mark.removeprefix("file: "), other.text


def shown(language: str) -> Any:
    some = [block for block in BLOCKS if block.language == language and not block.mark.startswith(("not run: ", "file: "))]
    return pytest.mark.parametrize("block", some, ids=str)


def as_pattern(line: str) -> str:
    """`…` is anything; how many spaces are between the columns of a table depends on what is in it."""
    return "".join(".*" if part == "…" else " +" if part.isspace() else re.escape(part) for part in re.split("(…|  +)", line))


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_every_block_is_of_a_known_kind(block: Block) -> None:
    assert block.language in (*RUN, *READ), f"say what it is: {', '.join((*RUN, *READ))}"
    assert re.fullmatch(r"|(not run|file): .{3,}", block.mark), f"no such mark: {block.mark}"
    if block.language == "text":
        assert not re.search(r"^(\$ |cronlock|\./)", block.text, re.M), "commands are not text"


@shown("sh")
def test_a_script_runs(block: Block, stage: Stage) -> None:
    for path, text in above(block):
        stage.file(path, text)
    if "cronlockctl" in block.text:
        stage.play("cronlock backup true")  # so that there is something to see
    done = stage.play("set -eu\n" + block.text)
    assert done.status == 0, done


@shown("console")
def test_a_session_prints_what_is_shown(block: Block, stage: Stage) -> None:
    for path, text in above(block):
        stage.file(path, text)
    session: list[tuple[str, list[str]]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            session.append((line[2:], []))
        elif line.startswith("> "):
            session[-1] = (session[-1][0] + "\n" + line[2:], [])
        else:
            session[-1][1].append(line)
    # a file per command, for what runs in the background goes on printing
    done = stage.play("".join(f"{{ {command}\n}} >$T/said{i} 2>&1\n" for i, (command, _) in enumerate(session)))
    for i, (command, lines) in enumerate(session):
        said = (stage.shell.T / f"said{i}").read_text(errors="backslashreplace").rstrip("\n")
        want = stage.ours("\n".join(lines)).rstrip("\n")
        pattern = "\n".join("(?s:.*)" if line == "…" else as_pattern(line) for line in want.split("\n"))
        assert re.fullmatch(pattern, said), f"$ {command}\n--- prints\n{said}\n--- and not\n{want}\n{done.err}"


@pytest.mark.parametrize(
    "block",
    [*(b for b in BLOCKS if b.language in ("crontab", "cron.d")), Block(EXAMPLE, 1, "crontab", EXAMPLE.read_text())],
    ids=str,
)
def test_a_crontab_line_does_its_job(block: Block, stage: Stage) -> None:
    for path, text in above(block):
        stage.file(path, text)
    for variables, command in crontab(block.text, user=block.language == "cron.d"):
        before = len(stage.ran)
        done = stage.play(command, cron=True, **variables)
        assert (done.status, done.err) == (0, ""), (command, done)
        if "cronlock " in command:
            assert len(stage.ran) > before, f"nothing ran: {command}"


LINES = sorted(
    {(page.name, span) for page in PAGES for span in inline(page) if re.match(r"(cronlock|cronlockctl) \S", span)}
    | {
        (page.name, line.removeprefix("$ "))
        for page in PAGES
        for lines in indented(page)
        for line in ([line for line in lines if line.startswith("$ ")] or lines)
        if re.match(r"(\$ )?(cronlock|cronlockctl)( |$)", line)
    }
)
SYNOPSIS = re.compile(r"(?<![-\w$])[A-Z]+(?![\w@-])|\[|…")
FAIL = (64, 70, 126, 127)  # not understood, or not there


@pytest.mark.parametrize(("page", "line"), [x for x in LINES if not SYNOPSIS.search(x[1])], ids=lambda x: str(x))
def test_a_line_in_the_text_is_one(page: str, line: str, stage: Stage) -> None:
    """It may fail, as most that cronlockctl says of an empty store; but it is understood, and what it names is there."""
    verb = re.fullmatch(r"cronlockctl \w+", line)
    done = stage.play(f"{line} --help" if verb else line)
    assert done.status not in FAIL, done
    if line.startswith("cronlock "):
        assert stage.ran or " sleep " in line, "nothing ran"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_command_hides_outside_of_a_fence(page: Path) -> None:
    command = r"(\./|pip|uv |git |python|apt|sudo |[\d*][\d*/,-]*( +[\d*/,-]+){4} )"
    hidden = [line for lines in indented(page) for line in lines if re.match(command, line)]
    assert not hidden, "put it into a fence of sh, console or crontab"


@shown("python")
def test_python_is_python(block: Block) -> None:
    tree = ast.parse(block.text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("cronlock"):
            assert all(hasattr(import_module(node.module), name.name) for name in node.names)


@shown("toml")
def test_toml_is_toml(block: Block) -> None:
    tomllib.loads(block.text)


def test_a_plugin_is_found_by_the_entry_point_that_is_shown(stage: Stage) -> None:
    [block] = [block for block in BLOCKS if block.page.name == "writing-a-backend.md" and block.language == "toml"]
    [(group, names)] = tomllib.loads(block.text)["project"]["entry-points"].items()
    [(scheme, place)] = names.items()
    module, _, function = place.partition(":")
    text = f"from cronlock.backends.flock import connect as c\n\ndef {function}(url):\n    return c(url.replace({scheme!r}, 'flock'))\n"
    stage.shell.T.joinpath(f"{module}.py").write_text(text)
    (stage.shell.T / f"{module}-1.dist-info").mkdir()
    (stage.shell.T / f"{module}-1.dist-info/entry_points.txt").write_text(f"[{group}]\n{scheme} = {place}\n")
    done = stage.play(f"PYTHONPATH=$T cronlock -b {scheme}://$T/locks x job")
    assert done.status == 0 and stage.ran, done
    stage.shell.T.joinpath(f"{module}.py").write_text("import a_driver_that_is_not_here")
    done = stage.play(f"PYTHONPATH=$T cronlock -b {scheme}://$T/locks x job")
    assert done.status == 78 and "No module named 'a_driver_that_is_not_here'" in done.err, done


@shown("yaml")
def test_yaml_is_yaml(block: Block) -> None:
    assert all((len(line) - len(line.lstrip(" "))) % 2 == 0 and "\t" not in line for line in block.text.splitlines())
    if find_spec("yaml"):
        assert import_module("yaml").safe_load(block.text)


@shown("redis")
def test_the_rights_that_are_shown_are_enough(block: Block, stage: Stage, open_redis: RedisServer) -> None:
    for line in block.text.splitlines():
        assert open_redis.cli(*line.replace(">PASSWORD", ">secret").split()) == "OK"
    url = open_redis.url("cron", "secret")
    done = stage.play("cronlock -v x job && cronlockctl history x && cronlockctl status", CRONLOCK_BACKEND=url)
    assert done.status == 0 and stage.ran and " ok" in done.out, done


@shown("sql")
def test_sql_is_what_postgresql_takes(block: Block, postgresql_url: str) -> None:
    with psycopg.connect(postgresql_url, autocommit=True) as connection:
        connection.execute("do $$ begin create role cron; exception when duplicate_object then null; end $$")
        connection.execute("create table invoices_done (day date, fence bigint)")
        connection.execute(re.sub(r"\bROLE\b", "cron", block.text))


def test_the_first_command_of_the_readme() -> None:
    """./try, if .venv is what it would make: a test must not install anything."""
    stamps = [ROOT / ".venv" / name for name in (".ready-run", ".ready-dev")]
    crc = subprocess.run("cksum <pyproject.toml", shell=True, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    if not any(stamp.exists() and stamp.read_text().strip() == f"{ROOT} {crc}" for stamp in stamps):
        pytest.skip("needs the .venv that ./test makes")
    done = subprocess.run(["./try"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done
    assert (done.stdout.count("RAN"), done.stdout.count("skipped   held by")) == (1, 4)
