"""A --heartbeat URL: read and checked before anything runs, by every host that fires, so without urllib.parse and re, which
cost a start more than the lock does. What is unusual (brackets, letters beyond ASCII) they judge all the same."""

from __future__ import annotations

from cronlock.errors import UsageError
from cronlock.model import Value

FIELDS = ("outcome", "status", "duration", "name", "run_id", "host")


class Target(Value):
    """A --heartbeat URL, understood."""

    dialect: str  # template or (by hc+) healthchecks; else empty: pings.py knows the services
    host: str  # the only part that is ever printed
    base: str  # up to and without the query
    query: str = ""


def parse(text: str, nth: int = 1) -> Target:
    """The target of a URL. UsageError for anything that is none; it does not repeat the URL, which holds a token."""
    which = "--heartbeat" if nth == 1 else f"--heartbeat number {nth}"
    if not text:
        raise UsageError(f"{which} is empty: give a URL")
    if any(c.isspace() or not c.isprintable() for c in text):
        raise UsageError(f"{which}: a URL has no spaces and no control characters")
    scheme, _, rest = text.partition("://")
    dialect = "healthchecks" if scheme.lower().startswith("hc+") else ""
    scheme = scheme.lower().removeprefix("hc+")
    if scheme not in ("http", "https") or not rest:
        raise UsageError(f"{which}: the URL must begin with https:// or http:// (hc+https:// for Healthchecks of your own)")
    before, _, query = rest.partition("#")[0].partition("?")
    place, slash, path = before.partition("/")
    try:
        host = _host(place)
    except ValueError:
        raise UsageError(f"{which}: host or port of the URL make no sense") from None
    if not host:
        raise UsageError(f"{which}: the URL names no host")
    names = _names(f"{slash}{path}?{query}")
    if set("{}") & set(place) or not names <= set(FIELDS):
        shown = " ".join(f"{{{name}}}" for name in FIELDS)
        raise UsageError(f"{which}: braces in the URL hold one of {shown}, after the host")
    if names & {"outcome", "status"}:
        dialect = "template"
    return Target(dialect, host, f"{scheme}://{place}{slash}{path}", query)


def _host(place: str) -> str:
    """Of `user:password@host:port`; empty if it is missing. ValueError if it makes no sense."""
    if not place.isascii() or set("[]") & set(place):
        from urllib.parse import urlsplit

        parts = urlsplit(f"http://{place}")
        host, port = parts.hostname or "", parts.port
        host.encode("ascii" if host.isascii() else "idna")
    else:
        host, _, digits = place.rpartition("@")[2].lower().partition(":")
        if digits and not (digits.isdigit() and len(digits) < 6):
            raise ValueError(digits)
        port = int(digits) if digits else None
    if port is not None and not 0 < port < 65536:
        raise ValueError(port)
    return host if len(host) <= 253 and all(c.isalnum() or c in "_.:%~-" for c in host) else ""


def _names(text: str) -> set[str]:
    """What stands in braces; an empty name, which is none, for a brace alone."""
    before, *pieces = text.split("{")
    found = {""} if "}" in before else set()
    for piece in pieces:
        name, _, after = piece.partition("}")
        found.add(name if "}" in piece and "}" not in after else "")
    return found
