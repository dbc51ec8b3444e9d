"""Figures as text."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    cells = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "".join("| " + " | ".join(map(str, row)) + " |\n" for row in cells)


def spread(values: Sequence[float], digits: int = 1) -> str:
    """The median, and the range that the middle half lies in."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.{digits}f} ({low:.{digits}f}–{high:.{digits}f})"
