"""The command under the lock. Everything it does, every 20 ms, is one line written to FILE in one O_APPEND write:

    start|beat|end NANOSECONDS RUN SLOT KIND FENCE

A process that is frozen or dead writes nothing, so a line means that somebody acted. The kinds: `plain` ends at TERM;
`stubborn` ignores what can be ignored; the others have a helper that acts too, and ignores TERM: `forks` a child in
the same group, `setsid` one in a session of its own, `daemon` an orphan behind a double fork. The run waits for its helper.
"""

import os
import select
import signal
import sys
import time

BEAT = 0.02
CATCHABLE = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def main(path: str, kind: str, seconds: str) -> None:
    until = time.monotonic() + float(seconds)
    rest = f"{os.environ['CRONLOCK_RUN_ID']} {os.environ['SLOT']} {kind} {os.environ['CRONLOCK_RUN_FENCE']}\n"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)

    def act(word: str) -> None:
        os.write(file, f"{word} {time.monotonic_ns()} {rest}".encode())

    def work() -> None:
        while time.monotonic() < until:
            act("beat")
            select.select([], [], [], BEAT)

    act("start")
    if kind != "stubborn":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    else:
        ignore()
    waits, held = os.pipe()  # until the helper is gone
    if kind in ("forks", "setsid", "daemon"):
        start_helper(kind, work, waits)
    os.close(held)
    try:
        work()
        while os.read(waits, 1):
            pass
    finally:
        act("end")


def start_helper(kind, work, waits) -> None:
    pid = os.fork()
    if pid:
        if kind == "daemon":
            os.waitpid(pid, 0)
        return
    os.close(waits)
    ignore()
    if kind != "forks":
        os.setsid()
    if kind == "daemon" and os.fork():
        os._exit(0)
    work()
    os._exit(0)


def ignore() -> None:
    for signum in CATCHABLE:
        signal.signal(signum, signal.SIG_IGN)


if __name__ == "__main__":
    main(*sys.argv[1:])
