"""Kernels as processes: an NFS server and its clients, each with a kernel of its own, on a bridge that reaches nothing else.

    with Network() as network:
        server, a = network.add("server", SERVER), network.add("a", 11)
        server.serve()
        a.mount()
        a.run("cronlock …")        # (status, output)
        server.freeze(); server.thaw(); network.cut(a); network.heal(a)

The network is a namespace without a name and everything in it is our child, so nothing is left behind. A guest's root
is this machine's, read-only: its Python and cronlock are ours. It hears its shell's commands on its console.
"""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

SERVER = 1
LEASE = 10  # seconds, NFSv4's; 90 unless it is set
NEEDS = {
    "linux.uml": "user-mode-linux",
    "rpc.nfsd": "nfs-kernel-server",
    "mount.nfs": "nfs-common",
    "rpcbind": "rpcbind",
    "modprobe": "kmod",
    "ip": "iproute2",
}

SERVE = f"""
/mnt/modprobe nfsd; /mnt/modprobe lockd
echo 3 > /proc/sys/fs/nfs/nlm_timeout; echo 1 > /proc/sys/fs/nfs/nlm_grace_period
mount -t nfsd nfsd /proc/fs/nfsd && mkdir /mnt/export && mount -t tmpfs tmpfs /mnt/export
rpcbind -w; rpc.statd --no-notify
echo {LEASE} > /proc/fs/nfsd/nfsv4leasetime; echo {LEASE} > /proc/fs/nfsd/nfsv4gracetime
rpc.nfsd 4 && exportfs -i -o rw,fsid=0,no_root_squash,insecure,no_subtree_check '*:/mnt/export' && rpc.mountd
echo Y > /proc/fs/nfsd/v4_end_grace
"""
# what a machine does as it starts; without the notice no NFSv3 client asks for its locks again
RESTART = """
rpc.nfsd 0; echo {lease} > /proc/fs/nfsd/nfsv4leasetime; echo {lease} > /proc/fs/nfsd/nfsv4gracetime
rpc.nfsd 4; rm -f /run/sm-notify.pid; sm-notify -f
"""
MOUNT = """
rpcbind -w; rpc.statd --no-notify; mkdir /mnt/v3 /mnt/v4 /mnt/v40 /mnt/v41 /mnt/nolock /mnt/soft
mount -t nfs -o nfsvers=3 10.78.0.1:/mnt/export /mnt/v3
mount -t nfs -o nfsvers=3,nolock 10.78.0.1:/mnt/export /mnt/nolock
mount -t nfs -o nfsvers=3,soft 10.78.0.1:/mnt/export /mnt/soft
for version in 4.2:v4 4.0:v40 4.1:v41; do mount -t nfs -o nfsvers=${version%:*} 10.78.0.1:/ /mnt/${version#*:}; done
"""


def missing() -> str:
    """Why there can be no lab here; empty if there can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "needs root on Linux"
    path = "/usr/sbin:/sbin:" + os.environ.get("PATH", "")
    absent = sorted({package for program, package in NEEDS.items() if not shutil.which(program, path=path)})
    if absent:
        return f"needs Debian's packages {' '.join(absent)}"
    return "" if os.access("/dev/net/tun", os.R_OK | os.W_OK) else "needs /dev/net/tun"


class Guest:
    def __init__(self, inside: list[str], name: str, number: int) -> None:
        self.name, self.number, self.tap = name, number, f"tap{number}"
        self._heard, self._asked = b"", 0
        self._console, its = pty.openpty()
        root = "mem=256M root=/dev/root rootfstype=hostfs rootflags=/ ro quiet con=null con0=fd:0,fd:1 ssl=null"
        kernel = ["linux.uml", *root.split()]
        own = [
            f"init={Path(__file__).with_name('guest.sh')}",
            f"umid=cronlock-{os.getpid()}-{name}",
            f"guest={name}",
            f"address=10.78.0.{number}",
            f"vec0:transport=tap,ifname={self.tap},depth=64,gro=0",
        ]
        self._kernel = subprocess.Popen([*inside, *kernel, *own], stdin=its, stdout=its, stderr=its, start_new_session=True)
        os.close(its)

    def ready(self) -> None:
        self._hear(rb"ready\r?\n", 120)
        assert self.run("true")[0] == 0

    def run(self, command: str, seconds: float = 120) -> tuple[int, str]:
        """Exit status and output of a shell command, without a terminal. What it leaves running must hold no output."""
        self._asked += 1
        os.write(self._console, f'{{ {command}\n}} </dev/null 2>&1 | cat; echo "##"{self._asked}"##$PIPESTATUS"\n'.encode())
        found, output = self._hear(rb"##%d##(\d+)\r?\n" % self._asked, seconds)
        return int(found[1]), output.replace("\r", "").strip()

    def serve(self) -> None:
        status, output = self.run(SERVE)
        assert status == 0, output

    def restart(self, lease: int) -> None:
        """The NFS server and what it knows of its clients, not the files."""
        status, output = self.run(RESTART.format(lease=lease))
        assert status == 0, output

    def mount(self) -> None:
        status, output = self.run(MOUNT)
        assert status == 0, output

    def freeze(self) -> None:
        self._kernel.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._kernel.send_signal(signal.SIGCONT)

    def power_off(self) -> None:
        """At once. A guest's processes are children of its kernel, stopped under ptrace(2), so they need a signal each."""
        if self._kernel.poll() is not None:
            return  # its number may be somebody else's by now
        for pid in _tree(self._kernel.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._kernel.wait()

    def _hear(self, pattern: bytes, seconds: float) -> tuple[re.Match[bytes], str]:
        end = time.monotonic() + seconds
        while not (found := re.search(pattern, self._heard)):
            left = end - time.monotonic()
            assert select.select([self._console], [], [], max(0, left))[0], f"{self.name} says nothing: {self._heard[-1000:]!r}"
            self._heard += os.read(self._console, 65536)
        before, self._heard = self._heard[: found.start()], self._heard[found.end() :]
        return found, before.decode(errors="replace")


class Network:
    def __init__(self) -> None:
        self._holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        end = time.monotonic() + 10
        while Path(f"/proc/{self._holder.pid}/comm").read_text() != "sleep\n":
            assert time.monotonic() < end
            time.sleep(0.01)
        self._inside = ["nsenter", f"--target={self._holder.pid}", "--net"]
        self.guests: list[Guest] = []
        for command in ("link set lo up", "link add br0 type bridge", "address add 10.78.0.254/24 dev br0", "link set br0 up"):
            self._ip(command)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for guest in self.guests:
            guest.power_off()
        self._holder.kill()
        self._holder.wait()

    def add(self, name: str, number: int) -> Guest:
        self._ip(f"tuntap add tap{number} mode tap")
        self._ip(f"link set tap{number} master br0 up")
        self.guests.append(Guest(self._inside, name, number))
        return self.guests[-1]

    def another(self) -> Guest:
        """With a name, address and tap that no other had before: guest.sh knows the names up to c19."""
        number = 10 + len(self.guests)
        return self.add(f"c{number}", number)

    def boot_again(self, guest: Guest) -> Guest:
        """After power_off()."""
        self.guests[self.guests.index(guest)] = again = Guest(self._inside, guest.name, guest.number)
        return again

    def cut(self, guest: Guest) -> None:
        """No packet in or out, and nobody is told."""
        self._ip(f"link set {guest.tap} nomaster")

    def heal(self, guest: Guest) -> None:
        self._ip(f"link set {guest.tap} master br0")

    def _ip(self, command: str) -> None:
        subprocess.run([*self._inside, "ip", *command.split()], check=True)


def _tree(pid: int) -> list[int]:
    found = [pid]
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split():
                found += _tree(int(child))
    return found
