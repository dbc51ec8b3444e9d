"""Nothing undocumented, nothing documented that is not there."""

import ast
import importlib.util
import itertools
import re
import tomllib

import pytest

from cronlock import config, durations, errors, exits, guard, lease, observers
from cronlock.backends import flock, postgresql, redis, redis_url
from cronlock.backends.postgresql_sql import DDL
from cronlock.model import Job, Run
from cronlock.options import OPTIONS
from cronlock.run import environment
from pages import PAGES, ROOT, anchors, fences, prose

SOURCE = ROOT / "src/cronlock"


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_link_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        there = page.parent / path if path else page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), f"{target}: no such heading"


def test_every_room_is_on_the_map():
    rooms = (ROOT / "CONTRIBUTING.md").read_text().partition("src/cronlock/")[2].partition("```")[0].partition("Imports only go")[0]
    names = {path.name for path in SOURCE.iterdir() if path.suffix == ".py" and not path.name.startswith("__")}
    assert {name for name in names if not re.search(rf"\b{name}\b", rooms)} == set()


def test_every_page_is_in_the_index():
    index = (ROOT / "docs/index.md").read_text()
    assert [page.name for page in PAGES if page.parent.name == "docs" and page.name != "index.md" and f"({page.name})" not in index] == []


def strings():
    """(what the program can say, the call that it is a part of) for each string of the source; `\0` stands for a value."""
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        for call in [node for node in ast.walk(tree) if isinstance(node, ast.Call)] + [None]:
            name = call.func.id if call and isinstance(call.func, ast.Name) else ""
            for node in ast.walk(call or tree):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value, name
                if isinstance(node, ast.JoinedStr):
                    for parts in itertools.product(*map(spellings, node.values)):
                        yield "".join(parts), name


def spellings(part):
    if isinstance(part, ast.Constant):
        return [part.value]
    if isinstance(part.value, ast.IfExp) and all(isinstance(one, ast.Constant) for one in (part.value.body, part.value.orelse)):
        return [part.value.body.value, part.value.orelse.value]
    return ["\0"]


STRINGS = sorted(set(strings()))
QUOTED = sorted(
    {
        (page.name, quoted, status)
        for page in PAGES
        for head, rows in re.findall(r"(^\|.*\n)\|[-|]+\n((?:^\|.*\n)+)", page.read_text(), re.M)
        for row in rows.splitlines()
        for cells in [dict(zip(*(re.split(r"(?<!\\) *\| *", line.strip().strip("|").strip()) for line in (head, row)), strict=False))]
        for quoted in re.findall(r"`([^`]+)`", cells.get("it says", cells.get("`-v` says", "")))
        for status in re.findall(r"^\d+$", cells.get("status", "")) or [""]
    }
)


@pytest.mark.parametrize(("page", "quoted", "status"), QUOTED, ids=[f"{page}:{quoted[:50]}" for page, quoted, _ in QUOTED])
def test_a_message_that_is_quoted_is_one(page, quoted, status):
    """Its fixed parts are in the source, and where an error of ours is made of it, that error has the status beside it."""
    parts = [part.strip(" :;,.()") for part in quoted.split("…") if len(part.strip(" :;,.()")) > 2]
    assert parts
    for part in parts:
        assert any(part in text for text, _ in STRINGS), f"nothing says {part!r}"
    kinds = {name for text, name in STRINGS if max(parts, key=len) in text and hasattr(errors, name)} - {"LeaseLost", "CommandError"}
    if status and kinds:
        assert int(status) in {exits.status(getattr(errors, kind)("")) for kind in kinds}, kinds


def test_every_variable_that_is_read_is_documented():
    page = (ROOT / "docs/configuration.md").read_text() + (ROOT / "docs/cli.md").read_text()
    known = set()
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        known |= set(re.findall(r"environ(?:\.get\(|\[)\"(\w+)\"", text)) | set(re.findall(r"\"(\w+)\" (?:not )?in (?:os\.)?environ", text))
    assert {"HOME", "PATH", "XDG_CONFIG_HOME", "CRON_TZ", "NO_COLOR"} <= known
    assert {name for name in known if f"`{name}`" not in page} == set()


def test_every_variable_that_the_command_gets_is_documented():
    page = (ROOT / "docs/cli.md").read_text()
    given = environment(Job("x", ("true",)), Run("i", "t", "h", 1, "u", "c", 0.0), "flock:")
    assert {name for name in given if f"`{name}`" not in page} == set()


def test_every_parameter_of_a_url_is_documented():
    page = (ROOT / "docs/backends.md").read_text()
    known = {*flock.OPTIONS, "timeout", *postgresql.OURS, *redis_url.KNOWN}
    assert {name for name in known if f"`{name}=" not in page} == set()


def test_every_table_of_the_config_is_documented():
    page = (ROOT / "docs/configuration.md").read_text()
    assert {table for table in config.TABLES if f"`[{table}" not in page} == set()
    shown = [tomllib.loads(block.text) for block in fences(ROOT / "docs/configuration.md") if block.language == "toml"]
    assert {table for one in shown for table in one} == set(config.TABLES)


def test_the_readme_is_short():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 200
    job = Job("x", ("true",))
    deadline = job.ttl - min(0.5, job.ttl / 20) - min(job.kill_after, job.ttl / 4)
    assert f"its ttl ({job.ttl:g} s)" in text and f"away for longer than {deadline:g} s" in text
    assert f"for {job.ttl / 3 + min(job.kill_after, job.ttl / 4):g} s at the default settings" in text


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
    assert durations.LONGEST == 10 * 365 * 86400 < redis.CLAIMED_MS / 1000 and "longest period (ten years)" in page
    assert f"last {flock.state.KEEP} periods" in page


def test_the_table_of_locks_is_the_one_that_is_made():
    page = (ROOT / "docs/backends.md").read_text()
    for statement in DDL:
        assert statement.format(table='"public"."cronlock"', runs='"public"."cronlock_runs"') + ";" in page
