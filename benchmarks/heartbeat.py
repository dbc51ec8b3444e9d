"""What a heartbeat costs the job. Prints lines for docs/heartbeats.md; needs the development environment.

    python benchmarks/heartbeat.py start [RUNS]     until the command runs, with a monitor that accepts and never answers, and without
    python benchmarks/heartbeat.py end              from the command's end to cronlock's, with that monitor and the default time-out
    python benchmarks/heartbeat.py log              what the monitor hears of an ok, failed, killed, timed-out, lost and three busy starts
    python benchmarks/heartbeat.py stream [BYTES]   --heartbeat-output under a long stream: memory and speed (10 GB: a few minutes)

What is compared takes turns, in any order, so that a machine that is busy meanwhile slows all of it.
"""

from __future__ import annotations

import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from fixtures_monitor import Server

CRONLOCK = str(Path(sys.executable).with_name("cronlock"))
CHECK = "/ping/0c70cd54-1a3c-4fd5-8f0c-0123456789ab"  # has a start
SIZE = 1 << 20


def start(runs: int) -> None:
    """Milliseconds from cronlock's spawn to the first instruction of the command, `date`."""
    with tempfile.TemporaryDirectory() as locks:
        silent = ["--heartbeat-timeout", "1", "--heartbeat", f"{Server().url}/hang{CHECK}"]
        ways = {"without a heartbeat": [], "with one": silent, "and --heartbeat-output 10k": [*silent, "--heartbeat-output", "10k"]}
        took: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(runs):
            for way in random.sample(list(ways), len(ways)):
                began = time.time_ns()
                argv = [CRONLOCK, "-q", "-b", f"flock://{locks}", *ways[way], "job", "date", "+%s%N"]
                done = subprocess.run(argv, stdout=subprocess.PIPE, check=True)
                took[way].append((int(done.stdout) - began) / 1e6)
    bare = statistics.median(took["without a heartbeat"])
    for way, times in took.items():
        median = statistics.median(times)
        print(f"start {way}: {median:.1f} ms ({median - bare:+.1f} ms), the median of {runs}")


def end() -> None:
    with tempfile.TemporaryDirectory() as locks:
        argv = [CRONLOCK, "-q", "-b", f"flock://{locks}", "--heartbeat", f"{Server().url}/hang{CHECK}", "job", "date", "+%s%N"]
        done = subprocess.run(argv, stdout=subprocess.PIPE, check=True)
        print(f"end: {time.time() - int(done.stdout) / 1e9:.2f} s after the command's")


def stream(amount: int) -> None:
    """The public case O60: a job that prints without end, into a pipe."""
    job = ["sh", "-c", f"head -c {amount} /dev/zero | tr '\\0' x; echo; echo LAST"]
    with tempfile.TemporaryDirectory() as locks:
        lock = [CRONLOCK, "-b", f"flock://{locks}", "--heartbeat", f"{Server().url}{CHECK}"]
        ways = {
            "without cronlock": job,
            "with cronlock": [*lock, "job", *job],
            f"with --heartbeat-output {SIZE >> 20}m": [*lock, "--heartbeat-output", str(SIZE), "job", *job],
        }
        found: dict[str, list[tuple[float, float, int]]] = {way: [] for way in ways}
        for _ in range(3):
            for way, argv in ways.items():
                found[way].append(_piped(argv))
    bare = min(found["without cronlock"])[0]
    for way, tries in found.items():
        seconds, own, peak = min(tries)[0], min(own for _, own, _ in tries), max(peak for _, _, peak in tries)
        itself = f"; cronlock itself: {own:.2f} s of processor, {peak / 1024:.1f} MiB at its peak" if way != "without cronlock" else ""
        print(f"stream of {amount / 1e9:g} GB {way}: {seconds:.2f} s ({seconds / bare:.2f} ×), the best of 3{itself}")


def log() -> None:
    """What the monitor hears of each end, in a Healthchecks dialect."""
    server = Server()
    with tempfile.TemporaryDirectory() as place:
        up, go, lock = (Path(place, name) for name in ("up", "go", "locks/job.lock"))
        wait = ("sh", "-c", f"touch {up}; until [ -e {go} ]; do sleep 0.05; done")

        def begin(*words: str) -> subprocess.Popen[bytes]:
            return subprocess.Popen([CRONLOCK, "-q", "-b", f"flock://{place}/locks", "--heartbeat", server.url + CHECK, *words])

        def held() -> subprocess.Popen[bytes]:
            up.unlink(missing_ok=True)
            holder = begin("job", *wait)
            while not up.exists():
                time.sleep(0.01)
            return holder

        def busy() -> int:
            holder = held()
            skipped = [begin("job", "true").wait() for _ in range(3)]
            go.touch()
            print(f"# three busy starts ended with {skipped}")
            return holder.wait()

        def lost() -> int:
            go.unlink()
            holder = held()
            lock.unlink()
            return holder.wait()

        ends = {
            "ok": busy,
            "failed": lambda: begin("job", "-c", "exit 3").wait(),
            "killed": lambda: begin("job", "-c", "kill -9 $$").wait(),
            "timed-out": lambda: begin("--max-runtime", "1s", "job", "sleep", "60").wait(),
            "lost": lost,
        }
        for word, end in ends.items():
            heard = len(server.log)
            print(f"# {word}: cronlock ended with {end()}")
            for request in server.log[heard:]:
                print(request)


def _piped(argv: Sequence[str]) -> tuple[float, float, int]:
    """Of `argv | tail -c 5`: the seconds it took, the processor's for the first process (a guard's command is not in it), and the most
    KiB that this had."""
    began, peak = time.monotonic(), 0
    first = subprocess.Popen(argv, stdout=subprocess.PIPE)
    last = subprocess.Popen(["tail", "-c", "5"], stdin=first.stdout, stdout=subprocess.PIPE, text=True)
    assert first.stdout
    first.stdout.close()
    while last.poll() is None:
        with suppress(OSError, TypeError):
            peak = max(peak, int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{first.pid}/status").read_text())[1]))  # type: ignore[index]
        time.sleep(0.02)
    _, status, usage = os.wait4(first.pid, 0)
    first.returncode = os.waitstatus_to_exitcode(status)
    if first.returncode or last.communicate()[0] != "LAST\n":
        sys.exit(f"{argv[0]} ended with {first.returncode}, and the stream's end did not arrive")
    return time.monotonic() - began, usage.ru_utime + usage.ru_stime, peak


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["start", *runs]:
            start(int(runs[0]) if runs else 41)
        case ["end"]:
            end()
        case ["log"]:
            log()
        case ["stream", *amount]:
            stream(int(amount[0]) if amount else 10_000_000_000)
        case _:
            sys.exit(__doc__)
