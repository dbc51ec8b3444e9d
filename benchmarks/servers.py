"""Valkey and PostgreSQL, those of the tests, as a distribution sets them up: PostgreSQL with 100 connections."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.install import ROOT

sys.path.insert(0, str(ROOT / "tests"))

from fixtures_postgresql import Postgres
from fixtures_redis import RedisServer

DISLOCK = "create table key_value (key text primary key, value text not null, expire_at timestamptz not null)"


@contextlib.contextmanager
def running(directory: Path) -> Iterator[dict[str, str]]:
    """Their URLs, and flock's. Autovacuum and fsync are on."""
    home = Path(tempfile.mkdtemp(prefix="cl-bench-"))  # short: a socket's path has 107 bytes at most
    with contextlib.ExitStack() as ends:
        ends.callback(shutil.rmtree, home, ignore_errors=True)
        valkey = RedisServer(home)
        ends.callback(valkey.stop)
        postgres = Postgres("fsync=on", "max_connections=100")
        ends.callback(postgres.destroy)
        with postgres.admin() as admin:
            admin.execute(DISLOCK)
        yield {"flock": f"flock://{directory}/locks", "redis": valkey.url().rstrip("?"), "postgresql": postgres.url().replace(":top@", "@")}
