"""Columns that line up in 80 characters, for a terminal and for a mail. Colour on a terminal only, and never with NO_COLOR."""

from __future__ import annotations

import os
import sys

from cronlock import durations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH = 80
GAP = "  "
COLOURS = {"good": "32", "odd": "33", "bad": "31"}


class Row(tuple[str, ...]):
    """The cells of one line, and how it looks: good, odd, bad or plain."""

    look: str

    def __new__(cls, cells: Sequence[str], look: str = "") -> Row:
        self = super().__new__(cls, tuple(printable(cell) for cell in cells))
        self.look = look
        return self


def columns(heads: Sequence[str], rows: Sequence[Row], *, elastic: Sequence[str] = (), painted: str = "") -> str:
    """`elastic`: the columns that give way, the widest first, if the line would be too long. `painted`: the one that is coloured."""
    shown = [Row(heads), *rows]
    widths = [max(wide(row[i]) for row in shown) for i in range(len(heads))]
    gives = [i for i, head in enumerate(heads) if head in elastic]
    while sum(widths) + len(GAP) * (len(widths) - 1) > WIDTH and gives:
        widest = max(gives, key=lambda i: widths[i])
        if widths[widest] <= 8:
            break
        widths[widest] -= 1
    return "\n".join(_line(row, widths, heads.index(painted) if painted else -1) for row in shown)


def _line(row: Row, widths: Sequence[int], painted: int) -> str:
    fitting = [(cut(cell, width), width) for cell, width in zip(row, widths, strict=True)]
    cells = [cell + " " * (width - wide(cell)) for cell, width in fitting]
    last = max((i for i, cell in enumerate(row) if cell), default=0)
    cells = cells[: last + 1]
    cells[last] = cells[last].rstrip()
    if 0 <= painted <= last:
        cells[painted] = paint(cells[painted], row.look)
    return GAP.join(cells)


def paint(text: str, look: str) -> str:
    code = COLOURS.get(look)
    return f"\x1b[{code}m{text}\x1b[0m" if code and coloured() else text


def coloured() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def fancy(text: str, plain: str) -> str:
    """`text` where stdout can print it, else `plain`."""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (UnicodeError, LookupError):
        return plain
    return text


def wide(text: str) -> int:
    """Columns on a terminal: Chinese, Japanese, Korean and emoji take two, combining marks none."""
    if text.isascii():
        return len(text)
    from unicodedata import category, east_asian_width

    return sum(0 if category(c) in ("Mn", "Me") else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def cut(text: str, width: int) -> str:
    if wide(text) <= width:
        return text
    while wide(text) >= width:
        text = text[:-1]
    return text + fancy("…", "~")


def printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)


def span(seconds: float) -> str:
    """A duration for people: 0.4s, 12s, 5m, 3h12m, 2d4h; seconds only where they matter."""
    if seconds < 10:
        return durations.show(max(0.0, round(seconds, 1)))
    return durations.show(round(seconds) if seconds < 600 else round(seconds / 60) * 60)
