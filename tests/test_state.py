"""The claim rule and the versioned text, as pure functions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cronlock import state
from cronlock.errors import ConfigError
from cronlock.model import Busy, Done, Grant, Run

text = st.text(max_size=20)
runs = st.builds(
    Run,
    text,
    st.text("abcdef0123456789", min_size=4, max_size=32),
    text,
    st.integers(0, 1 << 22),
    text,
    text,
    st.floats(0, 4e9),
    text,
    st.integers(0, 1 << 62),
    st.sampled_from(["", "ok", "failed"]),
    st.none() | st.integers(0, 255),
    st.none() | st.floats(0, 4e9),
)
NOW = 1_700_000_000.0


def run(token: str, label: str = "", outcome: str = "") -> Run:
    return Run("id", token, "h", 1, "u", "c", NOW, label, outcome=outcome)


@given(
    st.builds(
        state.State, st.integers(0, 1 << 62), st.floats(0, 4e9), st.floats(0, 4e9), st.none() | runs, st.lists(runs, max_size=4).map(tuple)
    )
)
def test_the_text_keeps_everything(value: state.State) -> None:
    assert state.decode(state.encode(value)) == value


@given(st.text(max_size=60) | st.binary(max_size=60))
def test_what_is_not_ours_is_foreign(raw: str | bytes) -> None:
    with pytest.raises(state.Foreign):
        state.decode(raw)


ENDLESS = [  # what JSON's numbers can say and no clock shows: a hold until then would keep everybody out for ever
    '{"v":1,"fence":Infinity,"held":0,"run":null,"claims":[]}',
    '{"v":1,"fence":"1","held":Infinity,"run":null,"claims":[]}',
    '{"v":1,"fence":"1","held":NaN,"run":null,"claims":[]}',
    '{"v":1,"fence":"1","held":1e300,"run":{"token":"t","host":"h","pid":1,"start":1},"claims":[]}',
    '{"v":1,"fence":"1","held":0,"run":{"token":"t","host":"h","pid":1,"start":Infinity},"claims":[]}',
]


@pytest.mark.parametrize(
    "raw", ["[]", "{}", '{"v":1}', '{"v":0}', '{"v":1,"fence":"x","held":0,"run":null,"claims":[]}', "[" * 100_000, '{"v":"2"}', *ENDLESS]
)
def test_broken_states_are_foreign(raw: str) -> None:
    with pytest.raises(state.Foreign):
        state.decode(raw)


def test_a_newer_format_is_refused_in_words() -> None:
    with pytest.raises(ConfigError, match="update cronlock"):
        state.decode('{"v": 2}')


def test_the_fence_grows_whatever_the_clock_does() -> None:
    first = state.claim(state.State(), Grant("n", run("a"), 60), NOW)
    assert isinstance(first, state.State)
    assert first.fence == int(NOW * 1e6)
    second = state.claim(first, Grant("n", run("b"), 60), NOW - 1000)
    assert isinstance(second, state.State)
    assert second.fence == first.fence + 1


@pytest.mark.parametrize(
    ("outcome", "retry", "had"),
    [("", False, True), ("ok", True, True), ("failed", False, True), ("failed", True, False), ("", True, False)],
)
def test_a_label_is_had(outcome: str, retry: bool, had: bool) -> None:
    known = state.State(claims=(run("a", "1h/x", outcome),))
    assert isinstance(state.claim(known, Grant("n", run("b", "1h/x"), 60, retry_failed=retry), NOW), Done) is had


def test_min_hold_is_not_honoured_longer_than_its_own_length() -> None:
    held = state.claim(state.State(), Grant("n", run("a"), 60, min_hold=100), NOW)
    assert isinstance(held, state.State)
    for now in (NOW - 0.5, NOW, NOW + 50):
        assert isinstance(state.claim(held, Grant("n", run("b"), 60), now), Busy)
    assert isinstance(state.claim(held, Grant("n", run("b"), 60), NOW - 2), state.State)
    busy = state.claim(held, Grant("n", run("b"), 60), NOW + 99)
    assert isinstance(busy, Busy)
    assert (busy.held, busy.ttl_left) == (True, 1.0)
    assert isinstance(state.claim(held, Grant("n", run("b"), 60), NOW + 100), state.State)
    assert isinstance(state.claim(held, Grant("n", run("b"), 60), NOW + 101), state.State)
    assert isinstance(state.claim(held, Grant("n", run("b"), 60), NOW - 86400), state.State)  # the clock was set back a day
    later = state.claim(held, Grant("n", run("b"), 60, min_hold=100), NOW - 86400)  # and goes on from there
    assert isinstance(later, state.State)
    assert isinstance(state.claim(later, Grant("n", run("c"), 60), NOW - 86400 + 50), Busy)


def test_an_end_that_nobody_wrote_is_vanished() -> None:
    granted = state.claim(state.State(), Grant("n", run("a", "1h/x"), 60), NOW)
    assert isinstance(granted, state.State)
    gone = state.vanished(granted)
    assert gone is not None
    assert gone.outcome == "vanished"
    over = state.ended(granted, run("a", "1h/x", "ok"))
    assert state.vanished(over) is None
    assert over.claims[0].outcome == "ok"


def test_an_end_changes_nothing_of_the_next_grant() -> None:
    """An ex-holder may write its end late."""
    first = state.claim(state.State(), Grant("n", run("a", "1h/x"), 60), NOW)
    assert isinstance(first, state.State)
    second = state.claim(first, Grant("n", run("b", "1h/y"), 60, min_hold=100), NOW + 1)
    assert isinstance(second, state.State)
    late = state.ended(second, run("a", "1h/x", "lost"))
    assert late == second.but(claims=(run("a", "1h/x", "lost"), second.claims[1]))
    assert state.withdrawn(second, "a") == second
    assert state.ended(state.State(), run("a")) == state.State() == state.withdrawn(state.State(), "a")


def test_a_grant_that_was_withdrawn_uses_nothing_up() -> None:
    first = state.claim(state.State(), Grant("n", run("a", "1h/x"), 60), NOW)
    assert isinstance(first, state.State)
    second = state.claim(first, Grant("n", run("b", "1h/y"), 60, min_hold=100), NOW + 1)
    assert isinstance(second, state.State)
    gone = state.withdrawn(second, "b")
    assert (gone.claims, gone.held, gone.fence) == (first.claims, 0.0, second.fence)
    assert state.vanished(gone) is None


def test_an_operators_grant_takes_the_holders_place() -> None:
    granted = state.claim(state.State(), Grant("n", run("a", "1h/x"), 60, min_hold=100), NOW)
    assert isinstance(granted, state.State)
    for store_now in (NOW + 5, NOW - 1000):
        seized = state.seized(granted, run("a", "1h/x", "lost"), run("op", outcome="released"), store_now)
        assert seized.run == run("op", outcome="released").but(fence=seized.fence)
        assert seized.fence == max(granted.fence + 1, int(store_now * 1e6))
        assert (seized.held, [c.outcome for c in seized.claims]) == (0.0, ["lost"])


@pytest.mark.parametrize(
    "wrong",
    [
        *['"pid":"1"', '"pid":1.5', '"start":"1"', '"start":1e12', '"end":"1"', '"end":1e12', '"status":"0"', '"status":0.5'],
        *[f'"{field}":1' for field in ("token", "host", "run_id", "user", "command", "label", "outcome")],
    ],
)
def test_a_run_whose_fields_have_the_wrong_kind_is_foreign(wrong: str) -> None:
    good = '{"token":"t","host":"h","pid":1,"start":1,'
    assert state.decode_run(good + '"later":"field"}').token == "t"
    with pytest.raises(state.Foreign):
        state.decode_run(f"{good}{wrong}}}")
