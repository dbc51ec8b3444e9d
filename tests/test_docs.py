"""Nothing undocumented, nothing documented that is not there."""

import ast
import importlib.util
import re

import pytest

from cronlock import cli, exits, guard, lease, observers
from cronlock.backends import flock, redis
from cronlock.backends.postgresql_sql import DDL
from cronlock.model import Job
from cronlock.options import OPTIONS
from cronlock.registry import open_backend
from pages import PAGES, ROOT, blocks, command_lines

SOURCE = ROOT / "src/cronlock"
SHOWN = [
    (page.relative_to(ROOT).as_posix(), variables, argv)
    for page in [*PAGES, ROOT / "examples/crontab.example"]
    for text in ([block for block, _ in blocks(page, "sh", "crontab")] if page.suffix == ".md" else [page.read_text()])
    for variables, argv in command_lines(text)
]
SHOWN += [
    (page.name, variables, argv)
    for page in PAGES
    for cell in re.findall(r"`(cronlock [^`]+)`", "".join(re.findall(r"^\|.*\n", page.read_text(), re.M)))
    for variables, argv in command_lines(cell)
]


def test_the_pages_made_from_the_code_are_fresh():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs/generate.py")
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    for page, text in generate.pages().items():
        assert (ROOT / "docs" / page).read_text() == text, f"{page}: run python docs/generate.py"


def test_every_option_is_on_the_command_line_page():
    page = (ROOT / "docs/cli.md").read_text()
    for option in OPTIONS:
        assert f"`--{option.name}`" in page and f"`{option.variable}`" in page


def test_every_exit_status_is_explained():
    page = (ROOT / "docs/exits.md").read_text()
    numbers = {value for value in vars(exits).values() if isinstance(value, int)} - {exits.SIGNAL}
    missing = {number for number in numbers if not re.search(rf"^\|.*\b{number}\b", page, re.M)}
    assert not missing
    assert f"{exits.SIGNAL}+N" in page


def test_every_outcome_is_explained():
    page = (ROOT / "docs/exits.md").read_text()
    words = {"vanished"}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Outcome":
                words |= {leaf.value for leaf in ast.walk(node.args[0]) if isinstance(leaf, ast.Constant) and isinstance(leaf.value, str)}
    assert {"ok", "failed", "killed", "timed-out", "lost", "busy", "done", "unavailable", "interrupted"} <= words
    assert {word for word in words if f"`{word}`" not in page} == set()


def test_every_event_is_in_the_vocabulary():
    """What the source makes events of, and nothing else."""
    kinds = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Event":
                kind, level = node.args[:2]
                kinds |= {leaf.value for leaf in ast.walk(kind) if isinstance(leaf, ast.Constant)}
                assert {leaf.value for leaf in ast.walk(level) if isinstance(leaf, ast.Constant)} <= observers.LEVELS.keys()
    outcomes = {"ok", "failed", "killed", "timed-out", "lost", "busy", "done", "unavailable", "interrupted", "error"}
    assert kinds | outcomes == observers.EVENTS.keys()


@pytest.mark.parametrize(("page", "variables", "argv"), SHOWN, ids=[f"{p}:{' '.join(a)[:60]}" for p, _, a in SHOWN])
def test_a_command_line_that_is_shown_is_one(page, variables, argv):
    """The program's own parser takes it, and its backend opens (which connects to nothing)."""
    values, words = cli.parse(argv, variables)
    if values is None:
        return  # --help, --version
    _, url = cli.understand(values, words, variables)[:2]
    open_backend(url).close()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_link_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) < 150


def test_the_figures_of_the_guarantees_are_the_codes():
    page = (ROOT / "docs/guarantees.md").read_text()
    job = Job("x", ("true",))

    class Lease:
        valid_for = job.ttl

    keeping = lease.Keeping(Lease(), 0.0, job.ttl, job.kill_after)
    gone, term = keeping.deadline, keeping.deadline - keeping.grace
    assert f"default ttl of {job.ttl:g} s" in page
    assert f"every {keeping.due():g} s" in page
    assert f"gets TERM {term:g} s and KILL {gone:g} s after" in page
    assert f"({keeping.grace:g} s of {job.ttl / 4:g} s)" in page
    assert (keeping.margin, min(0.5, job.ttl / 20), keeping.gap) == (0.5, 0.5, job.ttl / 3)
    assert f"up to {term:g} s after the last renewal" in page
    assert f"({keeping.due():g} s) and its grace is over ({keeping.grace:g} s)" in page
    assert f"noticed within {lease.LOOK:g} s" in page and f"`--kill-after` ({job.kill_after:g} s)" in page
    assert guard.TURN == 1 and "look once a second" in page
    assert f"kept for {redis.KEEP_MS / 86_400_000:g} days" in page
    assert f"last {flock.state.KEEP} periods" in page


def test_the_table_of_locks_is_the_one_that_is_made():
    page = (ROOT / "docs/backends.md").read_text()
    for statement in DDL:
        assert statement.format(table='"public"."cronlock"', runs='"public"."cronlock_runs"') + ";" in page
