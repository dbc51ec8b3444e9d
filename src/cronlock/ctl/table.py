"""Columns that line up, for a terminal and for a mail."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def columns(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    shown = [heads, *([_printable(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in shown) for i in range(len(heads))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in shown)


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)
