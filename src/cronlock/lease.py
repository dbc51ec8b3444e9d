"""Keeping a lease: renew it each third of its ttl, regain it by identity, know when it must be given up.

One place for all backends. Validity counts from before the request was sent, so network and server can only make
it seem shorter than it is. The command may run only until `deadline`; the guard is told, and acts on it alone.
"""

from __future__ import annotations

from cronlock import clock
from cronlock.errors import UNANSWERED, LeaseLost

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cronlock.protocol import Lease

INF = float("inf")
LOOK = 1.0  # seconds between two looks at a lock that has no expiry (was its file replaced?)
PAUSE = (0.2, 1.0)  # seconds between tries while there is no answer: first, longest
PATIENCE = (1.0, 10.0)  # seconds one try may take: first, longest


class Keeping:
    """A held lease and its clockwork."""

    def __init__(self, lease: Lease, asked: float, ttl: float, kill_after: float) -> None:
        self.lease = lease
        finite = lease.valid_for < INF
        ttl = min(ttl, lease.valid_for)  # an NFS server's lease may be shorter
        self.grace = min(kill_after, ttl / 4) if finite else kill_after
        # the tree must be *gone* when the lease runs out: KILL falls this much earlier
        self.margin = min(0.5, ttl / 20)
        self.gap = ttl / 3 if finite else INF
        self._interval = ttl / 3 if finite else LOOK
        self._gone = False
        self.regained = False
        self._granted(asked)

    def _granted(self, asked: float) -> None:
        self._valid_until = asked + self.lease.valid_for
        self._next = asked + self._interval
        self.unanswered = ""  # why, while nobody knows
        self._pause, self._patience = PAUSE[0], PATIENCE[0]

    @property
    def deadline(self) -> float:
        """When the command's tree must be gone (lease clock)."""
        return self._valid_until - self.margin

    def due(self) -> float:
        return self._next

    def expired(self) -> bool:
        """Too late for a renewal: what is left is needed to stop the tree."""
        return clock.now() >= self.deadline - self.grace

    def fit_to_start(self, until: float) -> bool:
        """Whether enough is left of a grant for the command to start; if not, it is renewed. There is time until `until`: nothing
        runs yet that would have to be stopped before."""
        try:
            return clock.now() < self._next or (self.turn(until) and not self.expired())
        except LeaseLost as error:
            self.unanswered = str(error)
            return False

    def turn(self, until: float | None = None) -> bool:
        """One try to renew. True: valid for another ttl. False: no answer, `unanswered` says why. LeaseLost: gone for good."""
        asked = clock.now()
        if until is None:
            until = min(asked + self._patience, max(self.deadline - self.grace, asked + PATIENCE[0] / 2))
        self.regained = False
        try:
            if not self._gone:
                try:
                    self.lease.renew(until)
                except LeaseLost:
                    self._gone = True
            if self._gone:
                self.lease.regain(until)
                self._gone, self.regained = False, True
        except LeaseLost:
            self._next = INF
            raise
        except UNANSWERED as error:
            self.unanswered = str(error)
            self._next = clock.now() + self._pause
            self._pause = min(self._pause * 2, PAUSE[1])
            self._patience = min(self._patience * 2, PATIENCE[1])
            return False
        self._granted(asked)
        return True
