"""Every number that leaves the process, and nowhere else.

64–78 are sysexits.h's, 124 is timeout(1)'s, 126/127/128+N are the shell's: what a crontab's reader knows already.
"""

from __future__ import annotations

from cronlock import errors
from cronlock.model import Outcome

BUSY = 75  # EX_TEMPFAIL, as lckdo(1): try again later. -E changes it
LOST = 76  # EX_PROTOCOL
UNAVAILABLE = 69  # EX_UNAVAILABLE
TIMED_OUT = 124
USAGE = 64
CONFIG = 78
PERMISSION = 77
INTERNAL = 70
NOT_EXECUTABLE = 126
NOT_FOUND = 127
SIGNAL = 128


def status(end: Outcome | BaseException, conflict_code: int = BUSY) -> int:
    """The exit status for an outcome or an error. Total: whatever is not known is INTERNAL."""
    if isinstance(end, Outcome):
        return _of_outcome(end, conflict_code)
    if isinstance(end, errors.CommandError):
        return end.code
    for kind, number in (
        (errors.UsageError, USAGE),
        (errors.ConfigError, CONFIG),
        (errors.PermissionDenied, PERMISSION),
        (errors.BackendError, UNAVAILABLE),
        (errors.LeaseLost, LOST),
    ):
        if isinstance(end, kind):
            return number
    return INTERNAL


def _of_outcome(end: Outcome, conflict_code: int) -> int:
    word = end.word
    if word in ("busy", "done"):
        return conflict_code
    if word == "timed-out":
        return TIMED_OUT
    if word == "lost" and end.detail != "continued":
        return LOST
    if end.signal is not None:  # killed, interrupted, or lost and continued
        return SIGNAL + end.signal
    return INTERNAL if end.code is None else end.code
