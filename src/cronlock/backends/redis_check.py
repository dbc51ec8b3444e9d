"""What `cronlockctl check` asks a Redis or Valkey server. It tries what a run does, on a key of its own."""

from __future__ import annotations

import os

from cronlock import clock
from cronlock.backends import checks
from cronlock.backends.resp import Refusal
from cronlock.model import Finding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from cronlock.backends.redis_link import Server

LUA = "return 1"
GRACE_MS = 5000  # after which our key is gone, whatever happens


def findings(server: Server, prefix: str, until: float) -> Iterator[Finding]:
    asked = clock.wall()
    told = server.ask([("TIME",)], until)[0]
    mid = (asked + clock.wall()) / 2
    known = _info(server, until)
    if known:
        yield from _server(known)
    if isinstance(told, list):
        yield checks.clock(int(told[0]) + int(told[1]) / 1e6 - mid)
    else:
        yield Finding("warning", "clock", "the server may not tell its time: hosts' clocks count for --min-hold", "ACL: +time")
    yield from _rights(server, prefix, until)
    if not known:
        remedy = "run check as a user with +info +config|get"
        yield Finding("warning", "memory", "INFO is not allowed, so eviction and persistence are unknown", remedy)
        return
    yield from _memory(server, known, until)
    most, used = known.get("maxclients"), known.get("connected_clients")
    if most and used:
        yield checks.connections(int(most) - int(used), int(most), "raise maxclients: each running job keeps one")


def _server(known: dict[str, str]) -> Iterator[Finding]:
    shown = f"{known.get('server_name', 'redis')} {known.get('valkey_version') or known.get('redis_version', '?')}"
    if known.get("cluster_enabled") == "1":
        yield Finding("trouble", "server", f"{shown}, part of a cluster, which cronlock does not route", "a server of its own")
    elif known.get("role") == "slave":
        yield Finding("trouble", "server", f"{shown}, a replica", "name the primary, or an address that follows it")
    else:
        yield Finding("ok", "server", f"{shown}, a primary")
    if int(known.get("connected_slaves", "0")):
        text = f"{known['connected_slaves']} replicas, asynchronous: a failover may forget a lock that is held"
        yield Finding("warning", "failover", text, "fencing tokens (docs/guarantees.md), or PostgreSQL")


def _rights(server: Server, prefix: str, until: float) -> Iterator[Finding]:
    key = f"{prefix}\x1fcheck{os.urandom(6).hex()}"
    must: list[Any] = [("SET", key, "1", "NX", "PX", GRACE_MS), ("GET", key), ("PEXPIRE", key, GRACE_MS)]
    better: list[Any] = [("EVAL", LUA, 0), ("PTTL", key), ("PUBLISH", key, "1"), ("SCAN", 0, "MATCH", key)]
    runs = f"{key}l"
    lists: list[Any] = [("RPUSH", runs, "1"), ("LTRIM", runs, 0, 1), ("LRANGE", runs, 0, 1), ("PEXPIRE", runs, GRACE_MS)]
    last: list[Any] = [("DEL", key, runs)]
    commands = [*must, *better, *lists, *last]
    replies = server.ask(commands, until)
    refused = [(command[0], reply) for command, reply in zip(commands, replies, strict=True) if isinstance(reply, Refusal)]
    denied = {name.lower() for name, reply in refused if str(reply).startswith("NOPERM") or "unknown command" in str(reply).lower()}
    for name, reply in refused:
        if name.lower() not in denied:
            yield Finding("trouble", "rights", f"{name} was refused: {' '.join(str(reply).split())[:120]}", "see the server")
            return
    missing = sorted(denied & {"set", "get", "pexpire", "del"})
    if missing:
        yield Finding(
            "trouble", "rights", f"this user lacks {', '.join(missing)}", "ACL SETUSER … " + " ".join(f"+{name}" for name in missing)
        )
    elif denied:
        text = f"enough for locking; without {', '.join(sorted(denied))} some of history, waking and reports is missing"
        yield Finding("warning", "rights", text, "ACL SETUSER … " + " ".join(f"+{name}" for name in sorted(denied)))
    else:
        yield Finding("ok", "rights", "every command that is used is allowed")


def _memory(server: Server, known: dict[str, str], until: float) -> Iterator[Finding]:
    policy, limit = known.get("maxmemory_policy", "?"), int(known.get("maxmemory", "0"))
    if policy.startswith(("allkeys", "volatile")):
        text = f"maxmemory-policy {policy}: under memory pressure the server throws away locks that are held"
        yield Finding("warning", "eviction", text, "noeviction, and no cache on the same server")
    else:
        yield Finding("ok", "eviction", f"maxmemory-policy {policy}")
    if limit and int(known.get("used_memory", "0")) > 0.9 * limit:
        used = int(known["used_memory"]) * 100 // limit
        yield Finding("warning", "memory", f"{used} % of maxmemory is used", "raise it: a full server refuses locks")
    saves = server.ask([("CONFIG", "GET", "save")], until)[0]
    saved = None if isinstance(saves, Refusal) else bool(saves[1] if isinstance(saves, list) and len(saves) > 1 else b"")
    if known.get("aof_enabled") == "1" or saved:
        yield Finding(
            "ok", "persistence", "aof" if known.get("aof_enabled") == "1" else "snapshots: a crash forgets what came after the last"
        )
    elif saved is None:
        text = "no aof; CONFIG is not allowed, so snapshots are unknown"
        yield Finding("warning", "persistence", text, "appendonly yes, or run check as a user with +config|get")
    else:
        yield Finding("warning", "persistence", "none: a restart forgets locks, periods and history", "appendonly yes")


def _info(server: Server, until: float) -> dict[str, str]:
    text = server.ask([("INFO",)], until)[0]
    if not isinstance(text, bytes):
        return {}
    return dict(line.partition(":")[::2] for line in text.decode("utf-8", "replace").split("\r\n") if ":" in line)
