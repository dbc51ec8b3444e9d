"""What the pages and examples show: fenced blocks, and the cronlock command lines in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
OPERATORS = (";", "|", "&", ">", "<", "(", ")")


def blocks(page: Path, *languages: str) -> Iterator[tuple[str, bool]]:
    """Fenced blocks of these languages; True if `<!-- test -->` stands before it."""
    for mark, language, text in re.findall(r"(<!-- test -->\n)?^```(\w+)\n(.*?)^```$", page.read_text(), re.S | re.M):
        if language in languages:
            yield text, bool(mark)


def command_lines(text: str) -> Iterator[tuple[dict[str, str], list[str]]]:
    """(CRONLOCK_… variables in force, the words after `cronlock`) for each call that a crontab or a script shows."""
    set_above: dict[str, str] = {}
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if found := re.fullmatch(r"(?:export )?(CRONLOCK_\w+)=(\S+)", line.strip()):
            set_above[found[1]] = found[2].strip("'\"")
            continue
        lexer = shlex.shlex(line.replace(r"\%", "%"), posix=True, punctuation_chars=";|&<>()")
        lexer.whitespace_split, lexer.commenters = True, ""
        words = list(lexer)
        for i, word in enumerate(words):
            if word.rpartition("/")[2] != "cronlock" or words[i - 1 : i] in (["install"], ["clone"], ["cd"]):
                continue
            here = {n: v for n, _, v in (w.partition("=") for w in words[:i]) if n.startswith("CRONLOCK_")}
            argv = []
            for each in words[i + 1 :]:
                if each[:1] in OPERATORS:
                    break
                argv.append(each)
            yield {**set_above, **here}, argv
