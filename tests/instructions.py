"""How many instructions a command takes, by valgrind: the same count on a busy machine and on an idle one."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence

NO_VALGRIND = "" if shutil.which("valgrind") else "needs Debian's package valgrind"


def instructions(argv: Sequence[str], environ: dict[str, str]) -> int:
    """Of a Python program, or of the fork of it that took most: what a fork inherits is in its count. Not of what becomes another
    program. A script's first line is followed."""
    with open(argv[0], "rb") as file:
        first = file.readline()
    interpreter = first[2:].decode().split() if first.startswith(b"#!") else []
    count = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    environ = {"PATH": "/usr/bin:/bin"} | environ
    done = subprocess.run([*count, *interpreter, *argv], env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return max(int(found.replace(",", "")) for found in re.findall(r"I +refs: +([\d,]+)", done.stderr))
