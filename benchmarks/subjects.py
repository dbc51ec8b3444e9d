"""What is measured: a command line that puts a lock before a command."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.install import FREDLOCK, PEERS, NotInstalled, environment
from benchmarks.process import Command

SCRIPTS = Path(__file__).parent / "peers"
BACKENDS = ("flock", "redis", "postgresql")


class Subject(NamedTuple):
    name: str
    words: tuple[str, ...]  # {lock} is the lock's name
    environ: dict[str, str]
    busy: int = 75  # its exit status when somebody else has the lock

    def __call__(self, lock: str, *command: str, options: tuple[str, ...] = ()) -> Command:
        """`options` go before its own words."""
        words = [word.replace("{lock}", lock) for word in self.words]
        return Command([words[0], *options, *words[1:], *command], {k: v.replace("{lock}", lock) for k, v in self.environ.items()})


class Stage(NamedTuple):
    """Where everything happens."""

    directory: Path
    python: str
    bin: Path  # of the environment with cronlock in it
    urls: dict[str, str]

    @property
    def baseline(self) -> Command:
        return Command([str(self.bin / "python"), "-I", "-c", "pass"], {})

    def cronlock(self, backend: str, query: str = "") -> Subject:
        environ = {"CRONLOCK_BACKEND": self.urls[backend] + query}
        return Subject(f"**cronlock** `{backend}:`", (str(self.bin / "cronlock"), "{lock}"), environ)

    @property
    def ours(self) -> list[Subject]:
        return [self.cronlock(backend) for backend in BACKENDS]

    @property
    def flock(self) -> Subject:
        return Subject("flock(1)", ("/usr/bin/flock", f"{self.directory}/{{lock}}.peer"), {}, busy=1)


def peers(stage: Stage) -> tuple[dict[str, Subject], list[str]]:
    """By a short name; and why some are not among them."""
    found: dict[str, Subject] = {}
    missing: list[str] = []
    for name, subject in _candidates(stage, missing):
        try:
            _try(subject, f"try-{name}")
            found[name] = subject
        except OSError as error:
            missing.append(f"{name}: {error}")
    return found, missing


def _try(subject: Subject, lock: str) -> None:
    if status := subject(lock, "/bin/true").time().status:
        raise OSError(f"its first run ended with {status}")


def _candidates(stage: Stage, missing: list[str]) -> Iterator[tuple[str, Subject]]:
    redis, postgresql = stage.urls["redis"], stage.urls["postgresql"]
    yield "flock", stage.flock._replace(words=(stage.flock.words[0], "-n", *stage.flock.words[1:]))
    for program, url in (("redis-cli", redis), ("psql", postgresql)):
        if shutil.which(program):
            script = SCRIPTS / f"with_{program.replace('-', '_')}.sh"
            yield program, Subject(f"script around {program}", ("/bin/bash", str(script), url, "{lock}-" + program), {})
        else:
            missing.append(f"{program}: not installed")
    try:
        bin = environment(stage.python, stage.directory / "peers", *PEERS)
        python = str(bin / "python")
        yield (
            "filelock",
            Subject("script around filelock", (python, f"{SCRIPTS}/with_filelock.py", f"{stage.directory}/{{lock}}.filelock"), {}),
        )
        for driver, url in (("redis", redis), ("psycopg", postgresql)):
            name = {"redis": "redis-py"}.get(driver, driver)
            yield name, Subject(f"script around {name}", (python, f"{SCRIPTS}/with_{driver}.py", url, "{lock}-py"), {})
        environ = {"URL": postgresql, "LOCK_KEY": "{lock}", "LOCK_STRATEGY": "lease"}
        yield "dislock", Subject("dislock", (str(bin / "dislock"), "URL"), environ, busy=0)
    except NotInstalled as error:
        missing.append(f"{', '.join(PEERS)}: {error}")
    try:
        bin = environment(stage.python, stage.directory / "fredlock", *FREDLOCK)
        words = ("-u", redis, "--name", "{lock}-fredlock", "--wait-timeout", "0", "--auto-release-time", "600000", "run")
        yield "fredlock", Subject("fredlock, repaired", (str(bin / "python"), f"{SCRIPTS}/with_fredlock.py", *words), {}, busy=254)
    except NotInstalled as error:
        missing.append(f"fredlock: {error}")
