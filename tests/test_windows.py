"""How long two can run where there is no table: the figures of docs/guarantees.md, printed with -s."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import hosts
from chaos import stores
from fixtures_nfs import unusable
from fixtures_store import CRONLOCK, until

pytestmark = [pytest.mark.root, pytest.mark.slow]

ACT = "date +%s.%N >$T/act.new; mv $T/act.new $T/act"
HOLDER = f"trap '' TERM; while :; do {ACT}; sleep .05; done"
STOPPED = 10.0  # seconds: grace
SLACK = 3.0  # that a busy machine may add


@pytest.fixture
def database() -> Iterator[stores.PostgreSQL]:
    if why := hosts.missing():
        unusable(why)
    store = stores.PostgreSQL()
    yield store
    store.destroy()


@pytest.mark.parametrize("fault", ["crash", "cut"])
def test_without_a_table(database: stores.PostgreSQL, fault: str, tmp_path: Path) -> None:
    """A session alone is the lock. One that the server has given up is noticed at once, or by the next renewal (20 s); the
    server gives up one that was cut off after 20 s. Then TERM, and KILL 10 s later, beside the next holder."""
    network, url = database.network, database.url + "?lock_key=77"
    assert network

    def go(number: int, *words: str) -> subprocess.Popen[str]:
        environ = {"T": str(tmp_path), "PATH": "/usr/bin:/bin"}
        return subprocess.Popen([*network.inside(number), CRONLOCK, "-b", url, *words], env=environ, stderr=subprocess.DEVNULL, text=True)

    holder = go(0, "job", "sh", "-c", HOLDER)
    other = None
    try:
        until((tmp_path / "act").exists)
        other = go(1, "-w", "2m", "job", "sh", "-c", "date +%s.%N >$T/other")
        with psycopg.connect(database.local) as admin:
            until(lambda: admin.execute("select 1 from pg_locks where locktype = 'advisory' and not granted").fetchone())
        began = time.time()
        if fault == "cut":
            network.cut(0)
        else:
            database.stop("crash")
            database.start()
        assert holder.wait(60) == 76
        assert other.wait(60) == 0
    finally:
        for process in filter(None, (holder, other)):
            process.kill()
            process.wait()
    started, last = (float((tmp_path / file).read_text()) - began for file in ("other", "act"))
    print(f"no table, {fault}: the other began after {started:.1f} s, the holder last acted after {last:.1f} s")
    assert last < {"crash": 0, "cut": 20 + 1}[fault] + STOPPED + SLACK
    assert last - started < STOPPED + SLACK
    assert started > {"crash": 0, "cut": 15}[fault]
