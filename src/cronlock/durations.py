"""DURATION (`90`, `90s`, `1.5m`, `1h30m`, `1d`) and SIZE (`10000`, `64k`): parse and print."""

from __future__ import annotations

UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
LONGEST = 10 * 365 * 86400.0  # beyond any job; keeps a typo from overflowing a server's interval
SIZES = {"": 1, "k": 1024, "m": 1024**2}
_DIGITS = frozenset("0123456789")


def parse(text: str, *, inf: bool = False) -> float:
    """Seconds. ValueError with the right form for anything else; `inf` only where for ever makes sense."""
    if inf and text == "inf":
        return float("inf")
    rest, total, units = text, 0.0, list(UNITS)
    while True:
        number = _leading_number(rest)
        unit = rest[len(number) : len(number) + 1]
        if not number or (unit and unit not in units) or (not unit and total):
            raise ValueError(f"{text!r} is no duration: write 90, 90s, 1.5m, 2h, 1d or 1h30m" + (" or inf" if inf else ""))
        total += float(number) * UNITS[unit or "s"]
        rest = rest[len(number) + 1 :]
        units = units[units.index(unit) + 1 :] if unit else []
        if not rest:
            break
    if total > LONGEST:
        raise ValueError(f"{text!r} is longer than ten years")
    return total


def size(text: str) -> int:
    """Bytes."""
    number = _leading_number(text.lower())
    unit = text[len(number) :].lower()
    if not number or "." in number or unit not in SIZES or len(number) > 12:
        raise ValueError(f"{text!r} is no size: write 10000, 64k or 1m")
    return int(number) * SIZES[unit]


def show(seconds: float) -> str:
    """The shortest honest form: 0.4s, 90s, 5m, 1h30m, 2d4h."""
    if seconds == float("inf"):
        return "inf"
    if seconds < 10:
        return f"{seconds:.3f}".rstrip("0").rstrip(".") + "s"
    whole, parts = round(seconds), []
    if whole < 100 and whole % 60:
        return f"{whole}s"
    for unit, length in UNITS.items():
        count, whole = divmod(whole, int(length))
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2])


def _leading_number(text: str) -> str:
    end = 0
    while end < len(text) and (text[end] in _DIGITS or (text[end] == "." and "." not in text[:end] and end)):
        end += 1
    return text[:end].rstrip(".") if not text[:end].endswith(".") else ""
