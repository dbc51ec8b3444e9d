"""What the backends' URLs have in common: percent signs, and passwords in files. Without urllib, which starts slowly."""

from __future__ import annotations

import os

from cronlock.errors import ConfigError, PermissionDenied, UsageError

_HEX = frozenset(b"0123456789abcdefABCDEF")


def decoded(text: str) -> str:
    """`%XX` as the bytes they are. UsageError for a % that is none of these."""
    if "%" not in text:
        return text
    try:
        out, *rest = text.encode("utf-8", "surrogateescape").split(b"%")
    except UnicodeEncodeError:
        raise UsageError("a character in a URL is none that can be written in UTF-8") from None
    for part in rest:
        if len(part) < 2 or part[0] not in _HEX or part[1] not in _HEX:
            raise UsageError("a '%' in a URL must be written %25")
        out += bytes((int(part[:2], 16),)) + part[2:]
    return out.decode("utf-8", "surrogateescape")


def password_from(path: str) -> str:
    """The first line of ?password_file=, read at each log-in, so that a changed one is found. PermissionDenied, ConfigError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            line = os.read(fd, 65536).partition(b"\n")[0].rstrip(b"\r").decode("utf-8", "surrogateescape")
            if os.fstat(fd).st_mode & 0o007:
                raise PermissionDenied(f"password_file {path}: others on this host may read the password: chmod o= {path}")
        finally:
            os.close(fd)
    except PermissionError:
        raise PermissionDenied(f"password_file {path}: uid {os.geteuid()} may not read it") from None
    except OSError as error:
        raise ConfigError(f"password_file {path}: {error.strerror}") from None
    if not line:
        raise ConfigError(f"password_file {path}: its first line is empty")
    return line
