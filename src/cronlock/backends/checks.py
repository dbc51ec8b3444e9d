"""Findings of `cronlockctl check` that two stores have in common."""

from __future__ import annotations

from cronlock.model import Finding

OFFSET = 2.0  # seconds; periods tolerate as much
FEW = 10  # free connections: each running job may keep one, and each attempt needs one


def clock(offset: float) -> Finding:
    """`offset`: seconds by which the store is ahead of this host."""
    shown = f"this host's is {abs(offset):.1f} s {'behind' if offset > 0 else 'ahead of'} the store's"
    if abs(offset) <= OFFSET:
        return Finding("ok", "clock", shown)
    return Finding("warning", "clock", shown, "NTP: cron fires by this host's clock, and periods are its labels")


def connections(free: int, most: int, remedy: str) -> Finding:
    few = free < FEW
    return Finding("warning" if few else "ok", "connections", f"{free} of {most} are free", remedy if few else "")
