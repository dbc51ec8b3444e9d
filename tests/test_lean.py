"""What stands in for signal, socket, json and contextlib does the same."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cronlock import lean

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec=None))
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


def answer(parse, text):
    try:
        return repr(parse(text))
    except ValueError:
        return "ValueError"
    except RecursionError:
        return "RecursionError"


@given(VALUES)
def test_dumps_and_loads_are_those_of_json(value):
    assert lean.dumps(value) == json.dumps(value)
    assert repr(lean.loads(json.dumps(value, indent=1))) == repr(value)


@given(
    st.text()
    | st.builds(
        lambda value, cut, end: json.dumps(value)[:cut] + end, VALUES, st.integers(0, 40), st.sampled_from(["", "}", "]", '"', " ", ","])
    )
)
def test_what_is_no_json(text):
    assert answer(lean.loads, text) == answer(json.loads, text.strip(" \t\r\n"))


@pytest.mark.parametrize("text", [b"\xff", b"", b"{}{}", b"[" * 100_000, b"nul", b"\xef\xbb\xbf{}"])
def test_broken_bytes(text):
    assert answer(lean.loads, text) in ("ValueError", "RecursionError")


def test_descriptors_travel():
    ours, theirs = lean.socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    bell, ringer = os.pipe()
    lean.send_fds(ours, b"fds", [bell, ringer])
    data, fds = lean.recv_fds(theirs, 100, 16)
    assert data == b"fds"
    assert [os.fstat(fd).st_ino for fd in fds] == [os.fstat(fd).st_ino for fd in (bell, ringer)]
    assert not any(os.get_inheritable(fd) for fd in fds)
    for fd in (bell, ringer, *fds):
        os.close(fd)
    ours.close()
    assert lean.recv_fds(theirs, 100, 16) == (b"", [])
    theirs.close()


def test_digest():
    assert lean.digest(b"x") == hashlib.blake2b(b"x", digest_size=8).hexdigest()


def test_suppress():
    with lean.suppress(OSError, ValueError):
        raise FileNotFoundError("swallowed")
    with pytest.raises(KeyError), lean.suppress(OSError):
        raise KeyError("not swallowed")


def test_the_signals_are_those_of_signal():
    for name in (
        "SIGTERM",
        "SIGINT",
        "SIGHUP",
        "SIGQUIT",
        "SIGUSR1",
        "SIGUSR2",
        "SIGCHLD",
        "SIGKILL",
        "SIG_IGN",
        "SIG_DFL",
        "SIG_BLOCK",
        "ITIMER_REAL",
    ):
        assert getattr(lean.signal, name) == getattr(signal, name)


ALONE = """
import sys
from cronlock import lean
for text in sys.argv[1:]:
    assert "json" not in sys.modules
    try:
        print(lean.loads(text))
    except ValueError:
        print("ValueError")
    for name in [name for name in sys.modules if name.partition(".")[0] == "json"]:
        del sys.modules[name]
"""


def test_what_is_no_json_where_nobody_has_imported_json():
    """As in a run: its scanner looks for json.decoder's error."""
    cut = ['{"v', '{"v": "1', '{"v": 1', '{"v": 1, ', '["\\q"]', '["\n"]', "{1: 2}", "["]
    done = subprocess.run([sys.executable, "-c", ALONE, *cut], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("ValueError\n" * len(cut), "")


WITHOUT = """
import sys
for name in ("_json", "_ctypes"):
    sys.modules[name] = None  # importing it raises ImportError
from cronlock import lean, tree
assert lean.loads(lean.dumps({"a": [1, None]})) == {"a": [1, None]}
try:
    tree.become_subreaper()
except ImportError:
    print("no ctypes either")
else:
    print("?")
"""


def test_a_python_without_them():
    """ctypes itself is made of _ctypes, so nothing is left then; json goes on without _json."""
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("no ctypes either\n", "")


OTHER = """
import _json
del _json.make_encoder
from cronlock import lean
assert lean._JSON is None
print(lean.loads("[1]"), lean.dumps([1]))
"""


def test_another_json_scanner_than_ours():
    done = subprocess.run([sys.executable, "-c", OTHER], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[1] [1]\n", "")
