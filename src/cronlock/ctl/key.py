"""`cronlockctl key`: the same lock in the store's own words."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cronlock.protocol import Backend


def text(backend: Backend, name: str) -> str:
    """A line to paste. Each backend knows its own."""
    return backend.key(name)
