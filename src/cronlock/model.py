"""The values that travel through the house: Job, Grant, Run, the three answers, Outcome, Event.

Nothing of ours is imported here, and neither `dataclasses` (2.7 times the start-up of a bare
interpreter, measured) nor `typing` (1.9 times): every crontab line on every server pays for this module.
"""

from __future__ import annotations

TYPE_CHECKING = False  # the name every type checker knows; importing it from typing would cost what it saves
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Self, dataclass_transform
else:

    def dataclass_transform(**_):
        return lambda cls: cls


@dataclass_transform(frozen_default=True, eq_default=True)
class Value:
    """A frozen record whose fields are its annotations, in their order, with their defaults."""

    _fields: tuple[str, ...] = ()

    def __init_subclass__(cls) -> None:
        cls._fields = tuple(cls.__annotations__)

    def __init__(self, *args: Any, **kw: Any) -> None:
        fields = self._fields
        if len(args) > len(fields):
            raise TypeError(f"{type(self).__name__} takes {len(fields)} values, got {len(args)}")
        given = dict(zip(fields, args, strict=False))
        for field, value in kw.items():
            if field not in fields or field in given:
                raise TypeError(f"{type(self).__name__}: unknown or repeated {field!r}")
            given[field] = value
        for field in fields:
            if field not in given:
                if not hasattr(type(self), field):
                    raise TypeError(f"{type(self).__name__} needs {field!r}")
                given[field] = getattr(type(self), field)
        self.__dict__.update(given)

    def __setattr__(self, field: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__}.{field} is frozen")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash((type(self), *self.__dict__.values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.__dict__.items())})"

    def but(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        return type(self)(**{**self.__dict__, **changes})

    def as_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)


class Run(Value):
    """One run of one job: who holds the lock now, or, once `outcome` is set, a line of the history.

    Times are seconds since the epoch by the runner's own wall clock; `fence` counts microseconds of the
    store's clock and only ever grows; `token` is random and names this run alone.
    """

    run_id: str
    token: str
    host: str
    pid: int
    user: str
    command: str
    start: float  # when it got the lock: what it waited before is no part of it
    label: str = ""  # the period it was started for, see periods.py
    fence: int = 0
    outcome: str = ""  # empty while nobody has seen its end
    status: int | None = None  # exit status of cronlock for this run
    end: float | None = None


class Grant(Value):
    """What one attempt asks the backend for."""

    name: str
    run: Run  # the holder-to-be; its fence is filled in by the backend
    ttl: float  # seconds the lock outlives a holder that vanished
    min_hold: float = 0.0  # seconds from the start during which nobody else may have it
    retry_failed: bool = False  # a claim of run.label that did not end `ok` does not count


class Busy(Value):
    """An answer: somebody else holds the lock now (or a min-hold keeps it)."""

    run: Run | None = None  # None: held by something that left no readable record
    held: bool = False  # True: nobody runs; the last run's --min-hold is not over
    ttl_left: float | None = None  # seconds, where the store tells


class Done(Value):
    """An answer: this period's run has been had."""

    run: Run


class Status(Value):
    """What a backend knows about one name, for people. May be stale; reading it disturbs nothing."""

    name: str
    held: bool
    run: Run | None = None  # the holder, or the last run known
    ttl_left: float | None = None  # seconds; None: no expiry (kernel lock) or not held
    held_until: float = 0.0  # epoch seconds, --min-hold
    detail: str = ""


class Finding(Value):
    """What `cronlockctl check` found: `level` is ok, warning or trouble."""

    level: str
    subject: str
    text: str
    remedy: str = ""


class Job(Value):
    """One cronlock command line, understood."""

    name: str
    command: tuple[str, ...]
    ttl: float = 60.0
    wait: float = 0.0  # seconds; inf: for ever
    conflict_code: int = 75
    no_fork: bool = False
    max_runtime: float | None = None
    kill_after: float = 10.0
    min_hold: float = 0.0
    warn_after: float | None = None  # None: three times the usual; 0: never
    jitter: float = 0.0
    label: str = ""  # the period this start belongs to, with --once-per
    period_end: float = float("inf")  # epoch seconds: waiting ends with the period
    retry_failed: bool = False
    standby: float = 0.0  # seconds this host holds back because --prefer names others
    on_lost: str = "terminate"  # or continue
    on_unavailable: str = "fail"  # or skip, run
    heartbeat: tuple[str, ...] = ()  # URLs of monitors
    heartbeat_output: int = 0  # bytes of the command's output for them
    heartbeat_timeout: float = 10.0
    environ: Mapping[str, str] = {}  # what the command inherits, before CRONLOCK_RUN_… is added


class Outcome(Value):
    """How a run ended: one word, and what exits.py and people need beside it."""

    word: str
    code: int | None = None  # the command's own exit status, if it exited
    signal: int | None = None  # the signal that ended it, or us while waiting
    answer: Busy | Done | None = None  # why nothing ran
    detail: str = ""

    @property
    def ran(self) -> bool:
        return self.word in ("ok", "failed", "killed", "timed-out", "lost")


class Event(Value):
    """Something worth telling. `level`: trouble and warning are always said, `contention` on a terminal, `info` with -v."""

    kind: str  # an outcome's word, or: acquired, waiting, regained, released, stopping, stuck, …
    level: str  # trouble | warning | contention | info
    text: str
    fields: Mapping[str, object] = {}
