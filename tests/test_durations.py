"""DURATION and SIZE: what is accepted, what is refused with the right form, and that printing loses nothing people need."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cronlock import durations


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("1.5m", 90),
        ("5m", 300),
        ("2h", 7200),
        ("1d", 86400),
        ("1h30m", 5400),
        ("0", 0),
        ("1d2h3m4s", 93784),
        ("3650d", durations.LONGEST),
    ],
)
def test_forms(text: str, seconds: float) -> None:
    assert durations.parse(text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", "-5", "abc", "1ms", "s", "1.", ".5", "1h1h", "1s1m", "30 ", " 3", "1e5", "1h30", "inf", "nan", "٣", "1..5s", "9" * 30, "3650d1s"],
)
def test_anything_else_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no duration|longer than ten years"):
        durations.parse(text)


def test_for_ever_only_where_it_makes_sense() -> None:
    assert durations.parse("inf", inf=True) == float("inf")
    assert durations.parse("5m", inf=True) == 300
    with pytest.raises(ValueError, match=r"1h30m$"):
        durations.parse("for ever")
    with pytest.raises(ValueError, match=r"or inf$"):
        durations.parse("for ever", inf=True)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *[(0, "0s"), (0.4, "0.4s"), (1.25, "1.25s"), (10.4, "10s"), (60, "1m"), (90, "90s"), (99, "99s"), (100, "1m40s"), (300, "5m")],
        *[(3600, "1h"), (5400, "1h30m"), (90061, "1d1h"), (187200, "2d4h"), (float("inf"), "inf")],
    ],
)
def test_what_people_read(seconds: float, text: str) -> None:
    assert durations.show(seconds) == text


@given(st.integers(0, int(durations.LONGEST)))
def test_whole_seconds_survive_printing_to_the_second_unit(seconds: int) -> None:
    """Two units are kept: 2d4h is what a person wants of 187200 s."""
    shown = durations.parse(durations.show(seconds))
    assert shown <= seconds
    assert seconds - shown < (1 if seconds < 3600 else 60 if seconds < 86400 else 3600)


@given(st.text(max_size=12))
def test_no_text_breaks_it(text: str) -> None:
    for parse in (durations.parse, durations.size):
        with suppress(ValueError):
            assert parse(text) >= 0


@pytest.mark.parametrize(("text", "octets"), [("10000", 10000), ("64k", 65536), ("1M", 1 << 20), ("0", 0), ("9" * 12, 10**12 - 1)])
def test_sizes(text: str, octets: int) -> None:
    assert durations.size(text) == octets


@pytest.mark.parametrize("text", ["", "k", "1.5k", "-1", "1g", "10 k", "9" * 13])
def test_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is no size"):
        durations.size(text)
