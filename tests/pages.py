"""What the pages and examples show: fenced blocks, inline command lines, crontab lines, links and anchors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


class Block(NamedTuple):
    """A fenced block. `mark` is what an HTML comment on the line before says: `not run: WHY`, or `file: PATH`, which the
    blocks below it on the same page find there."""

    page: Path
    line: int
    language: str
    text: str
    mark: str = ""

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}-{self.language or 'plain'}"


def fences(page: Path) -> list[Block]:
    found, lines, start = [], page.read_text().splitlines(), 0
    for i, line in enumerate(lines):
        if not line.lstrip().startswith("```"):
            continue
        if not start:
            start = i + 1
            continue
        before = re.fullmatch(r"<!-- (.*) -->", lines[start - 2]) if start > 1 else None
        text = "\n".join(lines[start:i]) + "\n"
        found.append(Block(page, start, lines[start - 1].lstrip()[3:].strip(), text, before[1] if before else ""))
        start = 0
    assert not start, f"{page.name}:{start}: a fence that nothing closes"
    return found


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"^\s*```.*?^\s*```$", "", page.read_text(), flags=re.S | re.M)


def indented(page: Path) -> list[list[str]]:
    """The lines of each indented block."""
    found: list[list[str]] = []
    before, inside = "", False
    for line in prose(page).splitlines():
        if line.startswith("    ") and (inside or not before.strip()):
            found += [] if inside else [[]]
            found[-1].append(line.strip())
            inside = True
        elif line.strip():
            inside = False
        before = line
    return found


def inline(page: Path) -> list[str]:
    """What stands in backquotes in the text and in the cells of tables."""
    return [span.replace(r"\|", "|") for span in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", prose(page))]


def crontab(text: str, *, user: bool = False) -> Iterator[tuple[dict[str, str], str]]:
    """(the variables set above it, the command) for each line, as cron reads it: `%` unless `\\%` ends a command.
    `user`: a name stands before the command, as in /etc/cron.d."""
    variables: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if setting := re.fullmatch(r"(\w+)\s*=\s*(.*)", line):
            variables[setting[1]] = setting[2].strip("'\"")
            continue
        job = re.fullmatch(r"(?:@\w+|[\d*/,-]+(?:\s+[\w*/,-]+){4})\s+" + (r"[\w-]+\s+" if user else "") + "(.*)", line)
        assert job, f"no crontab line: {line}"
        yield dict(variables), re.split(r"(?<!\\)%", job[1])[0].replace(r"\%", "%")


def anchors(page: Path) -> set[str]:
    """As the forge makes them of headings."""
    heads = re.findall(r"^#+ (.*)$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", head).lower()).replace(" ", "-") for head in heads}
