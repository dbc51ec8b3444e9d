"""`signal`, `socket`, `json`, `contextlib.suppress` and prctl(2) at the price of the C modules under them.

The wrappers bring enum, selectors, re, functools and ctypes along, which together take longer than a whole run on local files
without them (benchmarks measure it). A Python whose C modules are not what they were gets the documented ones instead.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as signal
    import socket as socket
    from collections.abc import Callable, Sequence
    from typing import Any
else:
    try:
        import _signal as signal
        import _socket as socket
    except ImportError:
        import signal  # noqa: F401
        import socket


class suppress:  # it is contextlib's
    def __init__(self, *errors: type[BaseException]) -> None:
        self._errors = errors

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, _error: object, _traceback: object) -> bool:
        return kind is not None and issubclass(kind, self._errors)


def _c_json() -> tuple[Callable[[str, int], tuple[Any, int]], Callable[[Any, int], Sequence[str]]] | None:
    class Plain:
        """What json.JSONDecoder tells its scanner when nothing special is asked for."""

        strict = True
        object_hook = object_pairs_hook = array_hook = None
        parse_float, parse_int, parse_constant = float, int, float

    try:
        import _json

        made: Any = _json
        scan = made.make_scanner(Plain)
        encode = made.make_encoder(None, None, made.encode_basestring_ascii, None, ": ", ", ", False, False, True)
        good = "".join(encode({"a": [1, 2.5, None]}, 0)) == '{"a": [1, 2.5, null]}' and scan('{"a": [1]}', 0) == ({"a": [1]}, 10)
    except Exception:  # private, so anything may have changed
        return None
    return (scan, encode) if good else None


_JSON = _c_json()


def loads(text: str | bytes) -> Any:
    """json.loads of UTF-8. ValueError for what is no JSON."""
    decoded = (text if isinstance(text, str) else text.decode()).strip(" \t\r\n")
    if _JSON is None:
        import json

        return json.loads(decoded)
    try:
        value, end = _JSON[0](decoded, 0)
    except (StopIteration, SystemError):  # Python 3.11's scanner has no error of its own until json.decoder has been imported
        raise ValueError("no JSON") from None
    if end != len(decoded):
        raise ValueError("more than one JSON value")
    return value


def dumps(value: Any) -> str:
    """json.dumps of strings, numbers, None, lists and dicts: ASCII, surrogates of undecodable argv bytes as \\udcXX."""
    if _JSON is None:
        import json

        return json.dumps(value)
    return "".join(_JSON[1](value, 0))


def digest(data: bytes) -> str:
    """16 hexadecimal digits. hashlib would load OpenSSL."""
    try:
        from _blake2 import blake2b
    except ImportError:
        from hashlib import blake2b
    return blake2b(data, digest_size=8).hexdigest()


def nothing() -> int:
    """/dev/null, or where a container has none, an empty file without a name."""
    try:
        return os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return os.memfd_create("null")


def hold_only(null: int, keep: set[int]) -> None:
    """For a process that was forked and goes on: no pipe of cron's and no file of the caller's is held by it."""
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    low = 3
    for fd in sorted(keep):
        os.closerange(low, fd)
        low = max(low, fd + 1)
    os.closerange(low, 65536)


def prctl(option: int, value: int) -> None:
    try:
        import _ctypes

        made: Any = _ctypes
        made.call_function(made.dlsym(made.dlopen(None, 0), "prctl"), (option, value, 0, 0, 0))
    except (ImportError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def send_fds(sock: socket.socket, data: bytes, fds: Sequence[int]) -> int:
    """socket.send_fds."""
    rights = b"".join(fd.to_bytes(4, sys.byteorder) for fd in fds)
    return sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])


def recv_fds(sock: socket.socket, size: int, most: int) -> tuple[bytes, list[int]]:
    """socket.recv_fds: the packet and the descriptors that came with it, not inheritable."""
    data, ancillary, _, _ = sock.recvmsg(size, socket.CMSG_LEN(4 * most), socket.MSG_CMSG_CLOEXEC)
    fds = []
    for level, kind, rights in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds += [int.from_bytes(rights[at : at + 4], sys.byteorder) for at in range(0, len(rights) - len(rights) % 4, 4)]
    return data, fds
