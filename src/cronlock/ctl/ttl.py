"""What a ttl means for a run."""

from __future__ import annotations

from cronlock import durations
from cronlock.model import Finding


def lease(ttl: float, kill_after: float) -> Finding:
    grace = min(kill_after, ttl / 4)
    text = f"ttl {durations.show(ttl)}, renewed every {durations.show(ttl / 3)}; on a loss {durations.show(grace)} from TERM to KILL"
    if grace < kill_after:
        short = f"a quarter of the ttl is shorter than --kill-after {durations.show(kill_after)}"
        return Finding("warning", "ttl", text, f"{short}: a command that needs that long needs --ttl {durations.show(4 * kill_after)}")
    if ttl < 10:
        return Finding("warning", "ttl", text, "a pause of a few seconds (load, network) costs the lock: --ttl 30s or more")
    return Finding("ok", "ttl", text)
