"""redis:// URLs, understood without urllib: where the server is, who we are there, and what of it may be printed."""

from __future__ import annotations

from cronlock import durations
from cronlock.backends.urls import decoded, password_from
from cronlock.errors import UsageError
from cronlock.model import Value

PREFIX = "cronlock:"
LONGEST = 107  # bytes of a Unix socket's path (sun_path)
TIMEOUT = 10.0  # seconds for look-up, connection, TLS, log-in and command together
TLS = ("ssl_ca_certs", "ssl_ca_path", "ssl_cert_reqs", "ssl_check_hostname", "ssl_certfile", "ssl_keyfile", "ssl_password", "ssl_ciphers")
KNOWN = ("prefix", "connect_timeout", "password_file", "db", "username", "password", *TLS)
FORM = "redis://[USER:PASSWORD@]HOST[:6379][/DB], rediss://… for TLS, unix:///PATH[?db=N]"


class Target(Value):
    scheme: str
    host: str
    port: int
    path: str  # of a Unix socket, or empty
    db: int
    username: str
    password: str
    password_file: str
    prefix: str
    timeout: float
    tls: dict[str, object]
    where: str  # the URL without the password

    def __repr__(self) -> str:
        return f"Target({self.where})"

    def secret(self) -> str:
        """The password. PermissionDenied, ConfigError."""
        return password_from(self.password_file) if self.password_file else self.password


def parse(url: str) -> Target:
    """UsageError for anything that is not one of FORM. No default host: an unset variable would lock at home on every machine."""
    scheme, _, rest = url.partition(":")
    if not rest.startswith("//"):
        raise UsageError(f"{scheme}: names no server: {FORM}")
    end = min((i for i in map(rest[2:].find, "/?#") if i >= 0), default=len(rest) - 2) + 2
    authority, tail = rest[2:end], rest[end:]
    try:
        return _parse(scheme, authority, tail)
    except UsageError:
        # what the message would quote may be half a password: say only which character cut it
        if "@" not in tail:
            raise
        raise UsageError(f"{scheme}://…: a {tail[0]!r} in a user name or password must be written {_quoted(tail[0])}") from None


def _parse(scheme: str, authority: str, tail: str) -> Target:
    login, at, place = authority.rpartition("@")
    if "@" in login:
        raise UsageError(f"{scheme}://…: an '@' in a user name or password must be written %40")
    if "#" in tail:
        raise UsageError(f"{scheme}://…: a '#' must be written %23")
    path, _, query = tail.partition("?")
    given = _query(query)
    user, _, password = login.partition(":")
    username, secret = decoded(user) or given.pop("username", ""), decoded(password) or given.pop("password", "")
    password_file = given.pop("password_file", "")
    if secret and password_file:
        raise UsageError("a password and ?password_file=: give one of them")
    if (at or username) and not secret and not password_file:
        raise UsageError(f"{scheme}://…: a user name without a password; a password alone is written {scheme}://:PASSWORD@HOST")
    prefix_given = "prefix" in given
    prefix = given.pop("prefix", PREFIX)
    if any(ord(c) < 32 or ord(c) == 127 for c in prefix):
        raise UsageError("?prefix= must not contain control characters")
    shown = f"{scheme}://{user + '@' if user else ''}"
    db = given.pop("db", "")
    if scheme == "unix":
        if place or not path.strip("/"):
            raise UsageError("unix: needs three slashes and a path: unix:///run/redis/redis.sock?db=0")
        host, port, socket, shown = "", 0, decoded(path), shown + path
        if len(socket.encode("utf-8", "surrogateescape")) > LONGEST:
            raise UsageError(
                f"unix: the path of a socket has at most {LONGEST} bytes, for the kernel takes no more: link it from a shorter one"
            )
    else:
        host, port = _place(scheme, place)
        if path not in ("", "/"):
            if db:
                raise UsageError("the database is given twice: /DB and ?db=")
            db = path[1:]
        socket, shown = "", f"{shown}{f'[{host}]' if ':' in host else host}:{port}"
    if db and not (db.isascii() and db.isdigit() and len(db) < 10):
        raise UsageError(f"{scheme}://…: the database {db!r} is not a number")
    if int(db or 0):
        shown += f"?db={int(db)}" if socket else f"/{int(db)}"
    if prefix_given:
        shown += ("&" if "?" in shown else "?") + "prefix=" + "".join(c if c.isalnum() or c in ":-_./{}" else _quoted(c) for c in prefix)
    timeout = _timeout(given.pop("connect_timeout", ""))
    tls = _tls(scheme, given)
    return Target(scheme, host, port, socket, int(db or 0), username, secret, password_file, prefix, timeout, tls, shown)


def _query(query: str) -> dict[str, str]:
    given: dict[str, str] = {}
    for part in filter(None, query.split("&")):
        key, _, value = part.partition("=")
        if key not in KNOWN:
            if any(k.endswith("password") for k in given):
                raise UsageError("a Redis URL has something unknown behind its password: an '&' in that must be written %26")
            from difflib import get_close_matches

            near = get_close_matches(key, KNOWN, 1, 0.5)
            raise UsageError(f"unknown ?{key}= in a Redis URL{f', did you mean ?{near[0]}=' if near else ''} (known: {', '.join(KNOWN)})")
        if key in given:
            raise UsageError(f"?{key}= is given twice")
        given[key] = decoded(value)
    return given


def _place(scheme: str, place: str) -> tuple[str, int]:
    if place.startswith("["):
        host, closed, port = place[1:].partition("]")
        if not closed or (port and not port.startswith(":")):
            raise UsageError(f"{scheme}://…: an IPv6 address is written [ADDRESS]:PORT")
        port = port[1:] if port else "6379"
    elif place.count(":") > 1:
        raise UsageError(f"{scheme}://…: an IPv6 address needs brackets: {scheme}://[ADDRESS]:PORT")
    else:
        host, colon, port = place.partition(":")
        port = port if colon else "6379"
    if not host:
        raise UsageError(f"{scheme}:// names no host: {FORM}")
    if not (port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) < 65536):
        raise UsageError(f"{scheme}://{host}: the port {port!r} is not a number from 1 to 65535")
    host = decoded(host)
    if any(ord(c) <= 32 for c in host):
        raise UsageError(f"{scheme}://…: a blank in the host name")
    return host, int(port)


def _timeout(text: str) -> float:
    if not text:
        return TIMEOUT
    try:
        seconds = durations.parse(text)
    except ValueError as error:
        raise UsageError(f"?connect_timeout=: {error}") from None
    if not seconds:
        raise UsageError("?connect_timeout= must be longer than 0")
    return seconds


def _tls(scheme: str, given: dict[str, str]) -> dict[str, object]:
    if given and scheme not in ("rediss", "valkeys"):
        raise UsageError(f"?{next(iter(given))}= without TLS: write rediss:// (nothing would be encrypted or checked)")
    tls: dict[str, object] = dict(given)
    reqs = given.get("ssl_cert_reqs", "required")
    check = given.get("ssl_check_hostname", "true").lower()
    if reqs not in ("required", "optional", "none") or check not in ("true", "false", "yes", "no", "1", "0"):
        raise UsageError("?ssl_cert_reqs= is required, optional or none; ?ssl_check_hostname= is true or false")
    # said outright: redis-py before 6 does not compare the host name unless told to
    tls |= {"ssl_cert_reqs": reqs, "ssl_check_hostname": reqs != "none" and check in ("true", "yes", "1")}
    return tls


def _quoted(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode("utf-8", "surrogateescape"))
