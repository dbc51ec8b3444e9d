"""python -m benchmarks: see the package."""

from __future__ import annotations

import argparse
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import herd, latency, memory, servers, startup
from benchmarks.install import ROOT, cronlock
from benchmarks.subjects import Stage, peers

PARTS = {"startup": startup.measure, "memory": memory.measure, "latency": latency.measure, "herd": herd.measure}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="few rounds: shows that it works, not how fast")
    parser.add_argument("--python", default=sys.executable, help="the interpreter to measure with")
    parser.add_argument("--report", type=Path, help="a page whose sections between <!-- measured: PART --> and <!-- end --> are replaced")
    args = parser.parse_args()
    parts = args.only.split(",")
    if unknown := [part for part in parts if part not in PARTS]:
        parser.error(f"no part {unknown[0]}; there are {', '.join(PARTS)}")

    commit = _said("git", "describe", "--always", "--dirty") or "unknown"  # before a report is written into it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the servers end with us
    with tempfile.TemporaryDirectory(prefix="cl-bench-") as path, servers.running(Path(path)) as urls:
        directory = Path(path)
        _say("installing")
        stage = Stage(directory, args.python, cronlock(args.python, directory), urls)
        others, missing = peers(stage) if parts != ["latency"] else ({}, [])
        for part in parts:
            _say(part)
            text = f"{_conditions(stage, commit)}\n\n{PARTS[part](stage, others, quick=args.quick)}"
            text += "".join(f"\nNot measured: {why}.\n" for why in missing)
            print(f"## {part}\n\n{text}", flush=True)
            if args.report:
                _replace(args.report, part, text)


def _conditions(stage: Stage, commit: str) -> str:
    with open("/proc/cpuinfo") as file:
        model = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), platform.machine())
    command = shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]])
    return (
        f"`{command}` on {time.strftime('%Y-%m-%d')}, commit {commit},\n"
        f"{platform.system()} {platform.release()}, {os.cpu_count()} × {model}, {_said(str(stage.bin / 'python'), '-V')}, "
        f"load {os.getloadavg()[0]:.1f} before."
    )


def _said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT).stdout.strip()


def _replace(page: Path, part: str, text: str) -> None:
    begin = f"<!-- measured: {part} -->\n"
    old = page.read_text()
    new = re.sub(rf"(?s)({re.escape(begin)}).*?(?=<!-- end -->)", lambda found: found[1] + text, old)
    if new == old:
        raise SystemExit(f"{page} has no {begin.strip()} … <!-- end -->")
    page.write_text(new)


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
