"""URL scheme -> backend: the only place that knows scheme names, and the only importer of drivers."""

from __future__ import annotations

from cronlock.errors import ConfigError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cronlock.protocol import Backend

DEFAULT = "flock:"
MODULES = {
    "flock": "cronlock.backends.files",
    "file": "cronlock.backends.files",
    "nfs": "cronlock.backends.nfs",
    "postgresql": "cronlock.backends.postgresql",
    "postgres": "cronlock.backends.postgresql",
    "redis": "cronlock.backends.redis",
    "rediss": "cronlock.backends.redis",
    "valkey": "cronlock.backends.redis",
    "valkeys": "cronlock.backends.redis",
    "unix": "cronlock.backends.redis",
}
GROUP = "cronlock.backends"


def open_backend(url: str) -> Backend:
    """The backend for `url`; no I/O yet. UsageError for an empty, unknown or malformed one, ConfigError for a plugin that is broken.

    A backend is a module with `connect(url: str) -> Backend`. A scheme that is not ours is looked for among the
    entry points of the group `cronlock.backends` (name: the scheme, value: such a module's `connect`).
    """
    scheme, colon, _ = url.partition(":")
    if not colon or not scheme:
        what = "is empty" if not url else f"{_shown(url)} has no scheme"
        raise UsageError(f"the backend {what}: give a URL such as {', '.join(_examples())}")
    module = MODULES.get(scheme)
    if module:
        return __import__(module, fromlist=["connect"]).connect(url)  # type: ignore[no-any-return] # importlib's costs 5 % of a start
    return _plugin(scheme)(url)  # type: ignore[operator, no-any-return]


def _plugin(scheme: str) -> object:
    # 5.7 times a bare interpreter's start, so only for a scheme that is not ours
    from importlib.metadata import entry_points

    found = entry_points(group=GROUP, name=scheme)
    for entry in found:
        try:
            return entry.load()
        except (ImportError, AttributeError) as error:  # often for want of a driver of its own
            raise ConfigError(f"the plugin for {scheme}: can't be loaded from {entry.value}: {error}") from None
    from difflib import get_close_matches

    near = get_close_matches(scheme, MODULES, 1)
    hint = f", did you mean {near[0]}:" if near else ""
    raise UsageError(f"no backend for {scheme}:{hint} (known: {', '.join(s + ':' for s in MODULES)}; plugins: {GROUP})")


def _examples() -> list[str]:
    return ["flock:", "flock:///var/lock/jobs", "nfs:///mnt/share", "postgresql://host/db", "redis://host/0"]


def _shown(url: str) -> str:
    return repr(url[:20] + "…") if len(url) > 20 else repr(url)
