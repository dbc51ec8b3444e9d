"""What can go wrong, as the person who must mend it sees it: what, where, what to do."""

from __future__ import annotations


class CronlockError(Exception):
    """Something that ends the run with a line and a status of its own."""


class UsageError(CronlockError):
    """argv, the environment, or a backend URL makes no sense."""


class ConfigError(CronlockError):
    """A config file, a mount, a link or a directory is not fit for its purpose."""


class PermissionDenied(CronlockError):
    """The store or the file system refused this user."""


class BackendError(CronlockError):
    """Nobody knows who holds the lock: the store did not answer, or not in words we can trust."""


UNANSWERED = (BackendError, PermissionDenied, ConfigError)
"""What a renewal or release that got no usable answer raises: nobody knows, so it is tried again while there is time."""


def unwritten(error: OSError) -> BackendError:
    """Of what was asked for on stdout: a disk that is full would be a success that says nothing."""
    return BackendError(f"can't write the answer: {error.strerror}")


class LeaseLost(CronlockError):
    """The lease is known to be gone: the store says somebody else holds it, or nobody does."""


class CommandError(CronlockError):
    """The command could not be started; `code` is 126 (not executable) or 127 (not found)."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class Interrupted(BaseException):
    """A signal came while nothing was running yet. Not an Exception: no driver may swallow it."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum
