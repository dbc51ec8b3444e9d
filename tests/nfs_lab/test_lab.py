"""nfs: on real NFS servers and clients, with the real command. The figures it prints (-s) are those of docs/guarantees.md."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator

import pytest

from fixtures_nfs import unusable
from fixtures_store import CRONLOCK
from nfs_lab import uml

pytestmark = [pytest.mark.root, pytest.mark.slow]

# writes its start and its end, however it comes, into $1; lasts $2 tenths of a second. Its last line needs no process:
# on a busy machine a guest takes longer than --kill-after to start one
SCRIPT = (
    "now() { echo $EPOCHREALTIME; }; trap 'now >> $1; exit 0' TERM; now > $1; "
    "i=0; while [ $i -lt $2 ]; do sleep .1; i=$((i + 1)); done; now >> $1"
)
JOB = shlex.join(["bash", "-c", SCRIPT, "job"])
STOPPED = "{ read -r && read -r; } < /run/times"


class Lab:
    def __init__(self, network: uml.Network) -> None:
        self.network = network
        self.server, self.a, self.b = (network.add(name, number) for name, number in (("server", uml.SERVER), ("a", 11), ("b", 12)))
        for guest in network.guests:
            guest.ready()
        self.server.serve()
        self.a.mount()
        self.b.mount()


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    if why := uml.missing():
        unusable(why)
    with uml.Network() as network:
        yield Lab(network)


def cronlock(version: str, *words: str, timeout: str = "5s") -> str:
    return f"{CRONLOCK} -t 8s -b 'nfs:///mnt/{version}?timeout={timeout}' {' '.join(words)}"


def start(guest: uml.Guest, command: str) -> None:
    """In the background; `ended` tells how it ended."""
    guest.run(f"rm -f /run/times /run/status; {{ {command} >/run/output 2>&1; echo $? >/run/status; }} >/dev/null 2>&1 &")
    wait(guest, "[ -s /run/times ] || [ -s /run/status ]")
    assert guest.run("[ -s /run/times ]")[0] == 0, guest.run("cat /run/output")[1]


def ended(guest: uml.Guest) -> tuple[int, str]:
    wait(guest, "[ -s /run/status ]")
    return int(guest.run("cat /run/status")[1]), guest.run("cat /run/output")[1]


def times(guest: uml.Guest, path: str = "/run/times") -> list[float]:
    return [float(word) for word in guest.run(f"cat {path}")[1].split()]


def wait(guest: uml.Guest, condition: str, seconds: int = 60) -> None:
    loop = f"end=$((SECONDS + {seconds})); until {condition}; do [ $SECONDS -lt $end ] || exit 9; sleep 0.1; done"
    assert guest.run(loop, seconds + 30)[0] == 0, f"not within {seconds} s on {guest.name}: {condition}"


def now(guest: uml.Guest) -> float:
    return float(guest.run("echo $EPOCHREALTIME")[1])


def free(guest: uml.Guest, version: str, name: str) -> None:
    """A v4 server that was away drops its clients' locks as it comes back, perhaps one just granted as well: 76."""
    end = time.monotonic() + 60
    while (answer := guest.run(cronlock(version, "-w 30s", name, "true"))) != (0, ""):
        assert time.monotonic() < end, answer
        print(f"{version}: not yet free: {answer}")
        time.sleep(0.5)


@pytest.mark.parametrize("version", ["v3", "v4", "v40", "v41"])
def test_one_at_a_time(lab: Lab, version: str) -> None:
    start(lab.a, cronlock(version, "one", JOB, "/run/times", "60"))
    assert lab.b.run(cronlock(version, "one", "true")) == (75, "")
    status, said = lab.b.run(cronlock(version, "-v", "one", "true"))
    assert status == 75 and " a " in said.replace(",", " ").replace(":", " ")  # the holder's host
    status, said = lab.b.run(cronlock(version, "-w 30s", "one", JOB, "/run/times", "1"))
    assert (status, said) == (0, "")
    status, said = ended(lab.a)
    assert status == 0, said  # on a busy machine it may say that the store took its time
    gap = times(lab.b)[0] - times(lab.a)[1]
    print(f"{version}: the waiter's command started {gap:.2f} s after the holder's had ended")
    assert 0 < gap < 10


def test_locks_that_stay_on_the_client_are_refused(lab: Lab) -> None:
    status, said = lab.a.run(cronlock("nolock", "none", "true"))
    assert status == 78 and "nolock" in said and "/mnt/nolock" in said


def test_check_sees_how_a_share_is_mounted(lab: Lab) -> None:
    def check(place: str) -> tuple[int, dict[str, tuple[str, str]]]:
        status, said = lab.a.run(f"{CRONLOCK}ctl -b 'nfs:///mnt/{place}?timeout=5s' check --json", 60)
        return status, {one["subject"]: (one["level"], one["text"]) for one in json.loads(said)["findings"]}

    status, found = check("v4")
    assert status == 1 and "others may hold any lock" in found["directory"][1], found  # 1777
    assert found["mount"][0] == found["locks"][0] == "ok" and "lease is 10s" in found["lease"][1], found
    status, found = check("soft")
    assert status == 1 and found["mount"] == ("warning", found["mount"][1]) and "is mounted soft" in found["mount"][1]
    status, found = check("nolock")
    assert status == 2 and found["mount"][0] == "trouble" and "nolock" in found["mount"][1]


@pytest.mark.parametrize("version", ["v3", "v4"])
def test_a_server_that_is_away_costs_the_timeout(lab: Lab, version: str) -> None:
    began = time.monotonic()
    assert lab.a.run(cronlock(version, "away", "true"))[0] == 0
    usual = time.monotonic() - began
    lab.server.freeze()
    try:
        began = time.monotonic()
        status, said = lab.a.run(cronlock(version, "away", "true", timeout="3s"))
        took = time.monotonic() - began
    finally:
        lab.server.thaw()
    print(f"{version}: 69 after {took:.2f} s with a timeout of 3 s; a run takes {usual:.2f} s here")
    assert status == 69 and said == f"cronlock: /mnt/{version} does not answer within 3s (stale mount? server down?)"
    assert took < usual + 3 + 1
    wait(lab.a, "! pgrep -x cronlock-nfs")
    assert lab.a.run(cronlock(version, "away", "true")) == (0, "")


@pytest.mark.parametrize("version", ["v3", "v4"])
def test_a_server_that_goes_away_ends_the_command_and_cronlock(lab: Lab, version: str) -> None:
    start(lab.a, cronlock(version, "--kill-after 1s", "gone", JOB, "/run/times", "600"))
    lab.server.freeze()
    try:
        began = now(lab.a)
        wait(lab.a, STOPPED)
        stopped = times(lab.a)[1] - began
        status, said = ended(lab.a)
        over = now(lab.a) - began
    finally:
        lab.server.thaw()
    print(f"{version}: server frozen: the command ended after {stopped:.1f} s, cronlock after {over:.1f} s (ttl 8 s)")
    assert status == 76 and "lock lost" in said  # by cronlock, or first by its guard: no answer, or the lease ran out
    assert stopped < 8 and over < 8 + 5 + 5  # five seconds of trying to release, and a slow guest
    wait(lab.a, "! pgrep -x cronlock-nfs")
    free(lab.b, version, "gone")


@pytest.mark.parametrize("version", ["v3", "v4"])
def test_a_server_that_starts_again_gives_the_lock_to_who_had_it(lab: Lab, version: str) -> None:
    """Although it lets nobody open a file for the length of a lease. A longer one here: a client tries again only after 3 s."""
    serve(lab, 30)
    try:
        # it lasts longer than five seconds: then what is usual is looked up, which must not open a file either
        start(lab.a, cronlock(version, "-v -t 60s", "again" + version, JOB, "/run/times", "900"))
        lab.server.restart(30)
        assert lab.b.run(cronlock(version, "again" + version, "true", timeout="50s")) == (75, "")
        assert lab.a.run("[ -s /run/status ]")[0] == 1, lab.a.run("cat /run/output")[1]
        lab.a.run("kill $(pgrep -o -x cronlock)")  # its command says 0 to that
        status, said = ended(lab.a)
        assert status == 0 and "lost" not in said, said
    finally:
        serve(lab, uml.LEASE)


def serve(lab: Lab, lease: int) -> None:
    """Nobody holds a lock, so nobody has to be waited for."""
    lab.server.restart(lease)
    assert lab.server.run("echo Y > /proc/fs/nfsd/v4_end_grace")[0] == 0
    for guest in (lab.a, lab.b):
        assert guest.run("for place in /mnt/v*; do touch $place/found-again || exit; done", 100)[0] == 0


@pytest.mark.parametrize("version", ["v3", "v4"])
def test_a_machine_that_loses_its_power(lab: Lab, version: str) -> None:
    c = lab.network.another()
    c.ready()
    c.mount()
    start(c, cronlock(version, "-t 5s", "power" + version, JOB, "/run/times", "600"))
    record = c.run("cat /var/lib/nfs/sm/*")[1]  # of its servers, on a disk if it had one
    c.power_off()
    off = time.monotonic()
    if version == "v4":
        status, said = lab.b.run(cronlock(version, "-w 60s", "power" + version, "true", timeout="40s"), 110)
        assert status == 0, said
        print(f"v4: power lost: the other has run after {time.monotonic() - off:.1f} s")
        return
    while time.monotonic() < off + 10:
        assert lab.b.run(cronlock(version, "power" + version, "true")) == (75, "")
    c = lab.network.boot_again(c)
    c.ready()
    status, said = c.run(f"echo '{record}' > /var/lib/nfs/sm/server; rpcbind -w && rpc.statd --no-notify && sm-notify -f")
    assert status == 0, said
    assert lab.b.run(cronlock(version, "-w 60s", "power" + version, "true", timeout="30s"), 100) == (0, "")
    took = time.monotonic() - off
    print(f"v3: power lost: busy for 10 s with a ttl of 5 s; the other has run after {took:.1f} s, the machine being up again")


def test_v4_a_holder_that_is_cut_off_stops_before_another_starts(lab: Lab) -> None:
    """The ttl is a minute, the server's lease ten seconds: that is what counts."""
    start(lab.a, cronlock("v4", "-t 60s --kill-after 1s", "cut", JOB, "/run/times", "600"))
    lab.network.cut(lab.a)
    try:
        began = now(lab.b)
        status, said = lab.b.run(cronlock("v4", "-w 60s", "cut", JOB, "/run/times", "1", timeout="40s"))
        assert (status, said) == (0, "")
        status, said = ended(lab.a)
    finally:
        lab.network.heal(lab.a)
    assert status == 76 and "lock lost" in said  # by cronlock, or first by its guard: no answer, or the lease ran out
    stopped, started = times(lab.a)[1], times(lab.b)[0]
    print(f"v4: cut off: its command ended after {stopped - began:.1f} s, the other's began after {started - began:.1f} s")
    assert stopped < started
    wait(lab.a, "! pgrep -x cronlock-nfs")


def test_v4_what_was_cut_off_learns_that_its_lock_is_gone(lab: Lab) -> None:
    """--on-lost continue, so that it is still there to ask: EIO through the locked descriptor."""
    start(lab.a, cronlock("v4", "-t 60s --kill-after 1s --on-lost continue", "told", JOB, "/run/times", "250"))
    lab.network.cut(lab.a)
    try:
        assert lab.b.run(cronlock("v4", "-w 60s", "told", "true", timeout="40s")) == (0, "")
    finally:
        lab.network.heal(lab.a)
    status, said = ended(lab.a)
    assert status == 0 and said.count("lock lost") == 1


def test_v3_a_holder_that_is_cut_off_keeps_everybody_out(lab: Lab) -> None:
    start(lab.a, cronlock("v3", "-t 6s --kill-after 1s", "cut", JOB, "/run/times", "600"))
    lab.network.cut(lab.a)
    try:
        began = now(lab.b)
        wait(lab.a, STOPPED)
        assert lab.b.run(cronlock("v3", "cut", "true")) == (75, "")
        assert ended(lab.a)[0] == 76
        print(f"v3: cut off: its command ended after {times(lab.a)[1] - began:.1f} s (ttl 6 s), and nobody got the lock")
    finally:
        lab.network.heal(lab.a)
    healed = time.monotonic()
    status, said = lab.b.run(cronlock("v3", "-w 2m", "cut", "true", timeout="30s"), 130)
    assert status == 0, said  # on a busy machine it may say that the store took more than a second to answer a renewal
    print(f"v3: free {time.monotonic() - healed:.1f} s after the network was back")


def test_v3_a_server_that_gave_the_lock_to_another_is_found_out(lab: Lab) -> None:
    """It was started again, and its notice reaches nobody here: nobody asks to have the lock back."""
    start(lab.a, cronlock("v3", "-t 20s --kill-after 1s", "given", JOB, "/run/times", "600"))
    assert lab.a.run("pkill -x rpc.statd")[0] == 0
    try:
        lab.server.restart(uml.LEASE)
        start(lab.b, cronlock("v3", "-w 60s", "given", JOB, "/run/times", "200", timeout="50s"))
        status, said = ended(lab.a)
    finally:
        assert lab.a.run("rpc.statd --no-notify")[0] == 0
    assert status == 76 and "given by the server to pid " in said and "root on b" in said, said
    print(f"v3: given away: its command ended {times(lab.a)[1] - times(lab.b)[0]:.1f} s after the other's had begun (ttl 20 s)")
    status, said = ended(lab.b)
    assert status == 0, said  # on a busy machine it may say that the store took its time
