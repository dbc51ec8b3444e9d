"""libpq without psycopg: of psycopg.pq what postgresql_session needs, under the same names.

psycopg is a whole database interface, and importing it takes longer than all the rest of a run; the libpq inside of it is
loaded in a small part of that. This is ctypes without its Python half, for the same reason. Whatever is not as expected
here is an exception when this module is imported, and postgresql_session then takes psycopg.pq instead.
"""

from __future__ import annotations

import os
import sys
from _ctypes import FUNCFLAG_CDECL, CFuncPtr, _Pointer, _SimpleCData, byref, dlopen, dlsym

from cronlock.model import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

_new: Any = type
_Int, _Text, _Handle = (_new(f"_{code}", (_SimpleCData,), {"_type_": code}) for code in "izP")
# PQconninfoOption is keyword, envvar, compiled, val, label, dispchar, and a number in the room of one more. As a Structure it
# would bring the Python half along: since 3.14 that is what lays one out
_Options, _PARTS, _VAL = _new("_Options", (_Pointer,), {"_type_": _Text}), 7, 3
_Function = _new("_Function", (CFuncPtr,), {"_flags_": FUNCFLAG_CDECL})
_VERBOSE = 2  # PQERRORS_VERBOSE


def _load() -> int:
    """psycopg's own libpq, where it is installed as a wheel, else the system's."""
    for entry in sys.path:
        home = os.path.join(entry, "psycopg_binary.libs")
        if os.path.isdir(home):
            return dlopen(next(os.path.join(home, name) for name in os.listdir(home) if name.startswith("libpq-")), 0)
    return dlopen("libpq.so.5", 0)


_LIBRARY = _load()


def _function(name: str, result: Any, *arguments: Any) -> Any:
    function = _Function(dlsym(_LIBRARY, name))
    function.restype, function.argtypes = result, arguments
    return function


def _value(name: str, result: Any = _Int) -> property:
    return property(_function(name, result, _Handle))


def _method(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    function = _function(name, result, _Handle, *arguments)
    return lambda self, *given: function(self, *given)


_connect_start = _function("PQconnectStart", _Handle, _Text)
_parse = _function("PQconninfoParse", _Options, _Text, _Handle)
_result_status, _rows, _columns = (_function(name, _Int, _Handle) for name in ("PQresultStatus", "PQntuples", "PQnfields"))
_is_null, _cell = (_function(name, kind, _Handle, _Int, _Int) for name, kind in (("PQgetisnull", _Int), ("PQgetvalue", _Text)))
_field, _clear = _function("PQresultErrorField", _Text, _Handle, _Int), _function("PQclear", None, _Handle)


class OperationalError(Exception):
    """The connection is of no more use, or never was."""


class Conninfo:
    @staticmethod
    def parse(conninfo: bytes) -> list[Option]:
        error = _Text()
        if found := _parse(conninfo, byref(error)):
            return _options(found)
        raise OperationalError(error.value.decode(errors="replace"))


class Option(Value):
    keyword: bytes
    val: bytes | None


def _options(found: Any) -> list[Option]:
    """Not freed: a run asks twice."""
    options: list[Option] = []
    while keyword := found[at := len(options) * _PARTS]:
        options.append(Option(keyword, found[at + _VAL]))
    return options


class PGresult:
    """Copied at once, so that nobody has to free it."""

    def __init__(self, handle: int) -> None:
        self.status, self.ntuples, self.nfields = (of(handle) for of in (_result_status, _rows, _columns))
        at = [[(handle, y, x) for x in range(self.nfields)] for y in range(self.ntuples)]
        cells = [[None if _is_null(*cell) else _cell(*cell) for cell in row] for row in at]
        self.get_value: Callable[[int, int], bytes | None] = lambda row, column: cells[row][column]
        self.error_field = {field: _field(handle, field) for field in b"CM"}.get  # SQLSTATE, the sentence
        _clear(handle)


class PGconn:
    status, socket, backend_pid, server_version = map(_value, ("PQstatus", "PQsocket", "PQbackendPID", "PQserverVersion"))
    error_message = _value("PQerrorMessage", _Text)
    info = property(lambda self: _options(self._info()))
    nonblocking = property(fset=_method("PQsetnonblocking", _Int, _Int))
    parameter_status = _method("PQparameterStatus", _Text, _Text)
    connect_poll, flush, is_busy = (_method(name, _Int) for name in ("PQconnectPoll", "PQflush", "PQisBusy"))
    _consume, _info, _result = _method("PQconsumeInput", _Int), _method("PQconninfo", _Options), _method("PQgetResult", _Handle)
    _send = _method("PQsendQueryParams", _Int, _Text, _Int, _Handle, _Handle, _Handle, _Handle, _Int)
    _say, _notices = _method("PQsetErrorVerbosity", _Int, _Int), _method("PQsetNoticeReceiver", _Handle, _Handle, _Handle)
    _finish = _method("PQfinish", None)

    def __init__(self, handle: int) -> None:
        self._as_parameter_: int | None = handle

    @classmethod
    def connect_start(cls, conninfo: bytes) -> PGconn:
        conn = cls(_connect_start(conninfo))
        conn._say(_VERBOSE)  # nothing else tells the SQLSTATE of a refused log-in: now it is a part of the text
        conn._notices(dlsym(_LIBRARY, "PQfreemem"), None)  # a notice is free(NULL), where libpq would print it
        return conn

    def send_query_params(self, sql: bytes, params: Sequence[bytes | None]) -> None:
        self._must(self._send(sql, len(params), None, (_Text * len(params))(*params), None, None, 0))

    def consume_input(self) -> None:
        self._must(self._consume())

    def get_result(self) -> PGresult | None:
        handle = self._result()
        return PGresult(handle) if handle else None

    def finish(self) -> None:
        self._finish()
        self._as_parameter_ = None  # NULL, which libpq takes for a lost connection

    def _must(self, done: int) -> None:
        if not done:
            raise OperationalError(self.error_message.decode(errors="replace"))
