"""`monitor`: a real HTTP server that notes every request exactly, and answers as its path says.

The first word of the path that is a key of ANSWERS, or a number, decides: /500/500/200/x answers so in turn and 200 from
then on. Everything else is answered 200.
"""

from __future__ import annotations

import re
import shutil
import socket
import ssl
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

import pytest

LIMIT = 1000  # bytes of body that /limit/… takes


class Request(NamedTuple):
    method: str
    target: str  # as it stood in the request line
    headers: dict[str, str]
    body: bytes
    at: float  # time.time() when it was complete

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(urlsplit(self.target).query, keep_blank_values=True, errors="surrogateescape"))

    def __str__(self) -> str:
        return f"{self.method} {self.target}" + (f" {self.body!r}" if self.body else "")


class Server:
    """Threads and sockets only: what it does to a client is decided here, not by a library."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.log: list[Request] = []
        self.connections = 0
        self.closing = threading.Event()
        self._turns: dict[str, int] = {}
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self.ca = ""
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self._listener.getsockname()[1]
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.port}"
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    @property
    def lines(self) -> list[str]:
        """Method, path and body; without the query."""
        return [f"{r.method} {r.path}" + (f" {r.body.decode(errors='replace')!r}" if r.body else "") for r in self.log]

    def close(self) -> None:
        self.closing.set()
        self._listener.close()
        for connection in self._open:
            connection.close()

    def _accept(self) -> None:
        while not self.closing.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            if self._tls:
                connection = self._tls.wrap_socket(connection, server_side=True)
            with connection.makefile("rb") as stream:
                method, target, _ = stream.readline().decode("latin-1").split()
                headers: dict[str, str] = {}
                while (line := stream.readline().decode("latin-1").strip()) != "":
                    name, _, value = line.partition(":")
                    headers[name.lower()] = value.strip()
                body = stream.read(int(headers.get("content-length", 0)))
            request = Request(method, target, headers, body, time.time())
            with self._lock:
                self.log.append(request)
            self._answer(connection, request)
            connection.close()
        except (OSError, ValueError):
            connection.close()

    def _answer(self, connection: socket.socket, request: Request) -> None:
        words = request.path.strip("/").split("/")
        numbers = [int(word) for word in words if re.fullmatch(r"[2-5]\d\d", word)]
        kind = words[0]
        if kind == "hang" or (kind == "hang-start" and words[-1] == "start"):
            self.closing.wait(60)
        elif kind == "slow":
            self.closing.wait(1)
            _send(connection, 200)
        elif kind == "trickle":
            connection.sendall(b"HTTP/1.1 200 OK\r\n")
            while not self.closing.wait(0.2):
                connection.sendall(b"X: y\r\n")
        elif kind == "endless":
            connection.sendall(b"HTTP/1.1 302 Found\r\nLocation: /arrived\r\n\r\n")
            while True:
                connection.sendall(bytes(65536))
        elif kind == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif kind == "garbage":
            connection.sendall(b"\0\1\2 nonsense\r\n\r\n")
        elif kind == "redirect":
            _send(connection, 302, f"Location: /{'/'.join(words[1:])}")
        elif kind == "elsewhere":
            _send(connection, 302, "Location: file:///etc/passwd")
        elif kind == "round":
            _send(connection, 302, f"Location: {request.path}")
        elif kind == "limit":
            _send(connection, 413 if len(request.body) > LIMIT else 200)
        elif kind == "limited":
            _send(connection, 200, f"Ping-Body-Limit: {LIMIT}")
        elif kind == "wait":
            with self._lock:
                first = not self._turns.setdefault(request.path, 0)
                self._turns[request.path] += 1
            if first:
                _send(connection, 429, f"Retry-After: {words[1]}")
            else:
                _send(connection, 200)
        else:
            with self._lock:
                turn = self._turns.setdefault(request.path, 0)
                self._turns[request.path] += 1
            _send(connection, numbers[min(turn, len(numbers) - 1)] if numbers else 200)


def _send(connection: socket.socket, status: int, *headers: str) -> None:
    lines = [f"HTTP/1.1 {status} Whatever", "Content-Length: 2", "Connection: close", *headers, "", "ok"]
    connection.sendall("\r\n".join(lines).encode())


@pytest.fixture
def monitor() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def tls_monitor(tmp_path: Path) -> Iterator[Server]:
    """One with a certificate that it signed itself; `ca` is a file that vouches for it."""
    if not shutil.which("openssl"):
        pytest.skip("openssl is not installed: no certificate to test TLS with")
    key, ca = str(tmp_path / "key.pem"), str(tmp_path / "ca.pem")
    names = ("-subj", "/CN=monitor", "-addext", "subjectAltName=IP:127.0.0.1")
    argv = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", ca, "-days", "2", *names]
    subprocess.run(argv, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(ca, key)
    server = Server(context)
    server.ca = ca
    yield server
    server.close()


@pytest.fixture
def another() -> Iterator[Server]:
    """A second one."""
    server = Server()
    yield server
    server.close()
