"""What a held lock costs in memory, and in processor time, beside the command itself."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.process import Gate, Watch, family, stat
from benchmarks.subjects import Stage, Subject
from benchmarks.table import table

MANY, FEW = 200, 20
SETTLED = 8.0  # seconds: with this ttl it has renewed by then, and looked up what is usual
TTL = ("-t", "15s")
IDLE = 20.0  # seconds


def measure(stage: Stage, peers: dict[str, Subject], *, quick: bool) -> str:
    rows = []
    for number, subject in enumerate([*stage.ours, *peers.values()]):
        with held(stage, subject, f"weigh{number}", 1, TTL if subject in stage.ours else ()) as members:
            time.sleep(SETTLED)
            rows.append([subject.name, len(members), *(f"{size / 1024:.1f}" for size in weigh(members))])
    count = FEW if quick else MANY
    together = []
    lease = "?lock_mode=lease"
    for name, subject in [(f"`{b}:`", stage.cronlock(b)) for b in ("flock", "redis")] + [
        (f"`postgresql:` with `{lease}`", stage.cronlock("postgresql", lease))
    ]:
        with held(stage, subject, "many", count, TTL) as members:
            time.sleep(SETTLED)
            size = sum(weigh([pid])[0] for pid in members)
            before, since = sum(stat(pid)[1] for pid in members), time.monotonic()
            time.sleep(IDLE)
            ticks = sum(stat(pid)[1] for pid in members) - before
            percent = 100 * ticks / os.sysconf("SC_CLK_TCK") / (time.monotonic() - since)
            together.append([f"{count} × {name}", f"{size / 1024:.0f}", f"{size / 1024 / count:.1f}", f"{percent:.1f}"])
    head = ["one lock held", "processes", "PSS, MiB", "if no other process shared a file with it"]
    return table(head, rows) + "\n" + table([f"{count} locks held", "PSS, MiB", "each", "% of one processor"], together)


@contextlib.contextmanager
def held(stage: Stage, subject: Subject, lock: str, count: int, options: tuple[str, ...]) -> Iterator[list[int]]:
    """The processes that keep so many locks, their commands not among them."""
    gate = Gate(stage.directory, f"{lock}-{subject.name.split('`')[-2] if '`' in subject.name else lock}".replace(":", ""))
    holders = gate.hold([subject(f"{lock}-{number}", *gate.job, options=options) for number in range(count)])
    jobs = {pid for job in gate.running() for pid in family(job)}
    yield [pid for holder in holders for pid in family(holder) if pid not in jobs]
    gate.open()
    Watch(holders).finish()


def weigh(pids: list[int]) -> tuple[int, int]:
    """In KiB: the share that is theirs of what all processes of the host use together (PSS); and all of it that they use
    but for files, with each file's pages counted once and in full."""
    pss = anonymous = 0
    files: dict[tuple[str, str], int] = {}
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
            key, value = line.split()[:2]
            pss += int(value) if key == "Pss:" else 0
            anonymous += int(value) if key == "Pss_Anon:" else 0
        mapping = ("", "")
        for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
            words = line.split()
            if not words[0].endswith(":"):
                mapping = (words[4], words[2]) if words[4] != "0" else ("", "")
            elif words[0] == "Rss:":
                resident = int(words[1])
            elif words[0] == "Anonymous:" and mapping[0]:
                files[mapping] = max(files.get(mapping, 0), resident - int(words[1]))
    return pss, anonymous + sum(files.values())
