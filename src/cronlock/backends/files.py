"""`flock:` and `file:` — plain where the file is on this machine, and as `nfs:` does it where it is on a network file system."""

from __future__ import annotations

from cronlock.backends import flock, mounts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cronlock.model import Busy, Done, Finding, Grant, Run, Status
    from cronlock.protocol import Backend, Lease


def connect(url: str) -> Backend:
    """Without any network mount, which is most machines, the plain backend itself."""
    table = mounts.table()
    plain = flock.connect(url)
    if not any(mount.network for mount in table):
        return plain
    _, options = flock.parse(url, flock.OPTIONS)
    return ByName(plain, table, allow_local=options.get("allow_local", "0") not in flock.NO)


class ByName:
    """A plain name lies in the directory, an absolute path where it says: each may be on either side."""

    def __init__(self, plain: flock.FlockBackend, table: Sequence[mounts.Mount], *, allow_local: bool) -> None:
        self.where, self.timeout, self.warnings = plain.where, plain.timeout, plain.warnings
        self._plain, self._table, self._allow_local = plain, table, allow_local
        self._far: Backend | None = None

    def try_acquire(self, grant: Grant, until: float) -> Lease | Busy | Done:
        return self._of(grant.name).try_acquire(grant, until)

    def abandon(self, grant: Grant, until: float) -> None:
        self._of(grant.name).abandon(grant, until)

    def wait(self, name: str, until: float) -> None:
        self._of(name).wait(name, until)

    def status(self, name: str, until: float) -> Status:
        return self._of(name).status(name, until)

    def names(self, until: float) -> Iterable[str]:
        return self._of("").names(until)

    def history(self, name: str, until: float) -> Sequence[Run]:
        return self._of(name).history(name, until)

    def seize(self, name: str, lost: Run, by: Run, until: float) -> None:
        self._of(name).seize(name, lost, by, until)

    def check(self, until: float) -> Iterable[Finding]:
        return self._of("").check(until)  # type: ignore[attr-defined, no-any-return] # both have it

    def key(self, name: str) -> str:
        return self._plain.key(name)

    def close(self) -> None:
        self._plain.close()
        if self._far:
            self._far.close()

    def _of(self, name: str) -> Backend:
        if not mounts.on_network(name if name.startswith("/") else self._plain.directory, self._table):
            return self._plain
        if self._far is None:
            from cronlock.backends import nfs  # an import that only such a mount is worth

            self._far = nfs.beside(self._plain, allow_local=self._allow_local)
        return self._far
