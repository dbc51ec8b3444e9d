"""DURATION and SIZE: what is accepted, what is refused with the right form, and that printing loses nothing people need."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cronlock import durations


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("1.5m", 90), ("5m", 300), ("2h", 7200), ("1d", 86400), ("1h30m", 5400), ("0", 0), ("1d2h3m4s", 93784)],
)
def test_forms(text: str, seconds: float) -> None:
    assert durations.parse(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "-5", "abc", "1ms", "s", "1.", ".5", "1h1h", "1s1m", "30 ", " 3", "1e5", "1h30", "inf", "nan", "٣", "1..5s", "9" * 30]
)
def test_anything_else_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no duration|longer than ten years"):
        durations.parse(text)


def test_for_ever_only_where_it_makes_sense() -> None:
    assert durations.parse("inf", inf=True) == float("inf")


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


@pytest.mark.parametrize(("text", "octets"), [("10000", 10000), ("64k", 65536), ("1M", 1 << 20), ("0", 0)])
def test_sizes(text: str, octets: int) -> None:
    assert durations.size(text) == octets


@pytest.mark.parametrize("text", ["", "k", "1.5k", "-1", "1g", "10 k", "9" * 20])
def test_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is no size"):
        durations.size(text)
