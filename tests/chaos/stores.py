"""The servers that are broken on purpose, and, for root, the network between them and three hosts."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg
import redis

import fixtures_postgresql
import fixtures_redis
import hosts

NAME = "chaos"  # of the lock
GRANT = """select case when c.expires > clock_timestamp() then c.token end, c.run->>'pid', k.pid, k.client_port
    from (select 1) one left join cronlock c on c.name = %s
    left join lateral (select a.pid, a.client_port from pg_locks join pg_stat_activity a using (pid)
        where locktype = 'advisory' and granted limit 1) k on true"""
ALONE = "ip link set lo up; echo ready; exec sleep infinity"
NETWORKS = 3


class Network:
    """Hosts with an interface each on a bridge whose address is the store's. Only their networks are their own."""

    def __init__(self) -> None:
        self._ends = contextlib.ExitStack()
        try:
            self.hub = hosts.Namespace(hosts.HUB, hosts.HUB_ADDRESS)
            self._ends.callback(self.hub.end)
            self.hosts = [self._host(number) for number in range(1, NETWORKS + 1)]
        except BaseException:
            self.end()
            raise

    def _host(self, number: int) -> hosts.Namespace:
        host = hosts.Namespace(ALONE)
        self._ends.callback(host.end)
        self._ip("link", "add", f"h{number}", "type", "veth", "peer", "name", "eth0", "netns", str(host.pid))
        host.run("ip", "address", "add", f"10.77.0.{10 + number}/24", "dev", "eth0", only=["--net"])
        host.run("ip", "link", "set", "eth0", "up", only=["--net"])
        self._ip("link", "set", f"h{number}", "master", "br0", "up")
        return host

    def _ip(self, *words: str) -> None:
        self.hub.run("ip", *words, only=["--net"])

    def inside(self, number: int) -> list[str]:
        """What to put before a command that is to run on a host."""
        return ["nsenter", f"--net=/proc/{self.hosts[number % NETWORKS].pid}/ns/net"]

    @property
    def at_hub(self) -> list[str]:
        return ["nsenter", f"--net=/proc/{self.hub.pid}/ns/net"]

    def cut(self, number: int) -> None:
        """No packet in or out, and nobody is told."""
        self._ip("link", "set", f"h{number % NETWORKS + 1}", "nomaster")

    def heal(self, number: int) -> None:
        self._ip("link", "set", f"h{number % NETWORKS + 1}", "master", "br0")

    def end(self) -> None:
        self._ends.close()


class Flock:
    """No server: nothing of it can be broken from outside."""

    faults: tuple[str, ...] = ()
    windows: tuple[str, ...] = ()
    network: Network | None = None
    idle = 0.0  # seconds that a grant may last to one that was frozen or cut off before
    # what is frozen may be the holder, or a waiter to whom the kernel gives the lock
    blocking = ("freeze-cronlock", "freeze-guard", "freeze-command", "both-frozen")

    def __init__(self) -> None:
        self._directory = tempfile.mkdtemp(prefix="cl-chaos-")
        self.url = f"flock://{self._directory}"

    def grant(self, pids: list[int]) -> tuple[str, int] | None:
        """Who has the lock: the grant, and the pid of the cronlock that got it or will hear of it. None: nobody, or unknown.
        Here unknown: whoever dies has it no more, and who is frozen counts as in the way."""
        return None

    def destroy(self) -> None:
        shutil.rmtree(self._directory)


class Served:
    faults = ("restart", "crash", "freeze-server", "disconnect")
    windows: tuple[str, ...] = ()
    idle = 0.0
    blocking = ("freeze-guard", "freeze-command")

    def __init__(self) -> None:
        self.network = None if hosts.missing() else Network()
        self.at_hub = self.network.at_hub if self.network else []
        self.address = hosts.HUB_ADDRESS if self.network else "127.0.0.1"

    def destroy(self) -> None:
        if self.network:
            self.network.end()


class _Valkey(fixtures_redis.RedisServer):
    def __init__(self, directory: Path, at_hub: list[str]) -> None:
        self._at_hub = at_hub
        super().__init__(directory)

    def start(self) -> None:
        # always: a grant that was answered is in the file, so that a crash loses none
        known = ("--bind", "0.0.0.0", "--protected-mode", "no", "--unixsocket", self.socket, "--dir", str(self.directory))
        safe = ("--save", "", "--appendonly", "yes", "--appendfsync", "always")
        argv = [*self._at_hub, str(fixtures_redis.BINARY), "--port", str(self.port), *known, *safe]
        with open(self.directory / "log", "ab") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        fixtures_redis.until(self.answers)


class Redis(Served):
    windows = ("emptied",)

    def __init__(self) -> None:
        super().__init__()
        self._directory = Path(tempfile.mkdtemp(prefix="cl-chaos-"))
        self._server = _Valkey(self._directory, self.at_hub)
        self.url = f"redis://{self.address}:{self._server.port}/0"

    def grant(self, pids: list[int]) -> tuple[str, int] | None:
        with contextlib.suppress(redis.exceptions.RedisError):
            token, _, run = (self._server.cli("GET", f"cronlock:{NAME}") or "").partition(" ")
            return (token, int(json.loads(run)["pid"])) if token else None
        return None

    def stop(self, kind: str) -> None:
        if kind == "restart" and self._server.process:
            self._server.process.terminate()
            self._server.process.wait(30)
        self._server.stop()
        if kind == "emptied":
            shutil.rmtree(self._directory / "appendonlydir")

    def start(self) -> None:
        self._server.start()

    def freeze(self) -> None:
        os.kill(self._server.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self._server.pid, signal.SIGCONT)

    def disconnect(self) -> None:
        """Every client's connection is closed by the server."""
        self._server.cli("CLIENT", "KILL", "TYPE", "normal")

    def destroy(self) -> None:
        if self._server.process:
            self.thaw()
        self._server.stop()
        shutil.rmtree(self._directory)
        super().destroy()


class _Postgres(fixtures_postgresql.Postgres):
    def __init__(self, at_hub: list[str], address: str) -> None:
        self._at_hub = at_hub
        self._address = address
        super().__init__(f"listen_addresses={address}")

    def _run(self, program: str, *args: str) -> None:
        command = [*self._at_hub, *fixtures_postgresql.as_nobody(str(self.bin / program), "-D", str(self._data), *args)]
        with tempfile.TemporaryFile("w+") as out:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd="/", timeout=60)
            out.seek(0)
            assert done.returncode == 0, out.read() + (self.log.read_text() if self.log.exists() else "")
        if program == "initdb":
            with (self._data / "pg_hba.conf").open("a") as file:
                file.write(f"host all all {self._address}/24 trust\n")


class PostgreSQL(Served):
    idle = 1.0  # its queue gives the lock to the next, who has half a second to claim the row

    def __init__(self) -> None:
        super().__init__()
        self._server = _Postgres(self.at_hub, self.address)
        self._frozen: list[int] = []
        self._link: psycopg.Connection[tuple[str | None, str, int | None, int]] | None = None
        self.local = f"host={self._server.home} port={self._server.port} user=postgres dbname=postgres"
        self.url = self._server.url().replace("127.0.0.1", self.address).replace(":top@", "@")

    def grant(self, pids: list[int]) -> tuple[str, int] | None:
        """The row's, or the advisory lock's: a waiter may have got that one and not yet know of it."""
        try:
            self._link = self._link or psycopg.connect(self.local, autocommit=True, connect_timeout=2)
            row = self._link.execute(GRANT, (f"cronlock:{NAME}",)).fetchone()
        except psycopg.Error:
            if self._link:
                self._link.close()
            self._link = None
            return None
        if row and row[0]:
            return row[0], int(row[1])
        return (f"session {row[2]}", owner(pids, row[3])) if row and row[2] else None

    def stop(self, kind: str) -> None:
        self._server.stop("fast" if kind == "restart" else "immediate")

    def start(self) -> None:
        self._server.start()

    def freeze(self) -> None:
        self._frozen = self._server.freeze()

    def thaw(self) -> None:
        for pid in self._frozen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def disconnect(self) -> None:
        """pg_terminate_backend for all of them, without a connection."""
        for pid in self._server.processes()[1:]:
            with contextlib.suppress(OSError):
                if b"postgres: postgres" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGTERM)

    def destroy(self) -> None:
        if self._link:
            self._link.close()
        self.thaw()
        self._server.destroy()
        super().destroy()


def owner(pids: list[int], port: int) -> int:
    """Which of them has this port of its host's; 0: none."""
    for pid in pids:
        with contextlib.suppress(OSError):
            inodes = {os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()}
            lines = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
            if any(int(line[1].partition(":")[2], 16) == port and f"socket:[{line[9]}]" in inodes for line in lines):
                return pid
    return 0


Store = Flock | PostgreSQL | Redis
STORES = {"flock": Flock, "postgresql": PostgreSQL, "redis": Redis}


def wait_gone(pids: list[int], seconds: float) -> list[int]:
    """Those that are still there then."""
    end = time.monotonic() + seconds
    while (left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]) and time.monotonic() < end:
        time.sleep(0.02)
    return left
