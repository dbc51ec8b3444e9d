"""python -m chaos: see the package."""

from __future__ import annotations

import argparse
import os
import platform
import random
import shlex
import statistics
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from chaos.driver import Chaos, Result
from chaos.judge import Gap
from chaos.stores import STORES


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos")
    parser.add_argument("--backend", action="append", choices=sorted(STORES), help="may be repeated; without it all, at the same time")
    parser.add_argument("--faults", type=int, default=1000, help="to inject, for each backend")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop earlier, if so much time is over")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6), help="of the plan; the timing is the machine's")
    parser.add_argument("--ttl", type=float, default=3.0)
    parser.add_argument("--slots", type=int, default=6, help="contenders")
    parser.add_argument("--windows", action="store_true", help="also what docs/guarantees.md says may overlap")
    parser.add_argument("--report", type=Path, help="write it there too")
    args = parser.parse_args()

    def one(backend: str) -> Result:
        chaos = Chaos(backend, seed=args.seed, ttl=args.ttl, slots=args.slots, windows=args.windows)
        return chaos.run(args.faults, args.seconds, say=lambda text: print(text, file=sys.stderr, flush=True))

    backends = args.backend or sorted(STORES)
    with ThreadPoolExecutor(len(backends)) as pool:
        results = list(pool.map(one, backends))
    text = report(results, "cd tests; python -m chaos " + shlex.join(sys.argv[1:]))
    print(text)
    if args.report:
        args.report.write_text(text)
    return 1 if any(wrong(result) for result in results) else 0


def wrong(result: Result) -> list[str]:
    """What should not have been, in words."""
    said = [
        f"{o.other.run.id} on {o.other.run.host} began {o.seconds:.3f} s before {o.one.run.id} on {o.one.run.host} last acted"
        for o in result.overlaps
        if not o.window
    ]
    said += [f"{result.backward} fences did not grow"] if result.backward else []
    said += [f"left behind: {process}" for process in result.left]
    said += [f"nobody ran for {gap.recovery:.2f} s, and no fault says why" for gap in result.slow]
    return said


def report(results: list[Result], command: str) -> str:
    kinds = [kind for kind, _ in Counter(fault.kind for result in results for fault in result.faults).most_common()]
    names = [result.backend for result in results]
    rows: list[list[object]] = [[kind, *(sum(f.kind == kind for f in r.faults) for r in results)] for kind in sorted(kinds)]
    figures: list[list[object]] = [
        ["faults injected", *(len(r.faults) for r in results)],
        ["minutes", *(f"{r.seconds / 60:.1f}" for r in results)],
        ["runs", *(len(r.runs) for r in results)],
        ["runs that were stopped or killed", *(sum(not acts.ended for acts in r.runs) for r in results)],
        ["**overlaps**", *(f"**{sum(not o.window for o in r.overlaps)}**" for r in results)],
        *_windows(results),
        ["fences that did not grow", *(r.backward for r in results)],
        ["longest time nobody ran", *(_seconds(max((g.seconds for g in r.gaps), default=0)) for r in results)],
        ["recovery: longest", *(_seconds(max((g.free for g in r.gaps), default=0)) for r in results)],
        ["recovery: 99 % below", *(_seconds(_quantile([g.free for g in r.gaps])) for r in results)],
        ["recoveries over ttl + 1 s", *(sum(g.free > r.ttl + 1 for g in r.gaps) for r in results)],
        ["the same, not explained below", *(f"**{len(r.slow)}**" for r in results)],
    ]
    network = f"contenders {'in networks of their own' if any(r.network for r in results) else 'on one network (no root): no cuts'}"
    problems = [f"- {r.backend}: {text}" for r in results for text in wrong(r)]
    kept = [f"- {r.backend}: records and messages are in {r.directory}" for r in results if r.directory]
    return "\n".join(
        [
            "# Chaos",
            "",
            f"`{command}` on {time.strftime('%Y-%m-%d')}, seed {results[0].seed}, ttl {results[0].ttl:g} s, commit {_commit()},",
            f"{platform.system()} {platform.release()}, {os.cpu_count()} processors, Python {platform.python_version()}; {network}.",
            "",
            "Two runs overlap if one still wrote after the other had begun to; each writes every 20 ms. Recovery counts from",
            "the last act of the run before, or from when the store was back or what was frozen with the lock went on,",
            "to the first act of the next. One that is longer than ttl + 1 s is explained if it is not, counted from the last fault",
            "that hit whoever the store had as the holder meanwhile; with PostgreSQL a second is added for each time that its queue",
            "gave the lock to a waiter that was frozen or cut off already.",
            "",
            *_table(["", *names], figures),
            "",
            "## Faults injected",
            "",
            *_table(["", *names], rows),
            "",
            *_slow(results),
            *(["## Wrong", "", *problems, *kept, ""] if problems else []),
        ]
    )


def _slow(results: list[Result]) -> list[str]:
    """What happened in the recoveries that took longer than a ttl and a second."""
    said = []
    for result in results:
        for gap in (gap for gap in result.gaps if gap.free > result.ttl + 1):
            why = f"; {gap.recovery:.2f} s since the last of " + ", ".join(gap.hits) if gap.hits else ""
            why += f"; given {gap.idle} times to one that was frozen or cut off already" if gap.idle else ""
            why += f"; unexplained: {_around(result, gap)}" if gap in result.slow else ""
            said.append(f"- {result.backend}: {gap.free:.2f} s ({gap.seconds:.2f} s since anybody ran){why}")
    return ["## Recoveries over ttl + 1 s", "", *said, ""] if said else []


def _around(result: Result, gap: Gap) -> str:
    end = gap.at + gap.seconds * 1e9
    around = [f for f in result.faults if f.at < end and f.until > gap.at - result.ttl * 1e9]
    what = [f"{f.kind} {f.slot} {(f.at - gap.at) / 1e9:+.1f}…{(f.until - gap.at) / 1e9:+.1f}" for f in around]
    holds = [h for h in result.holds if h.at < end and h.until > gap.at]
    what += [f"{h.slot} had it {(h.at - gap.at) / 1e9:+.1f}…{(h.until - gap.at) / 1e9:+.1f}" for h in holds]
    return "seconds from the last act: " + ", ".join(what)


def _windows(results: list[Result]) -> list[list[object]]:
    kinds = sorted({o.window for r in results for o in r.overlaps if o.window})

    def cell(result: Result, kind: str) -> str:
        seconds = [o.seconds for o in result.overlaps if o.window == kind]
        return f"{len(seconds)}, longest {max(seconds):.2f} s" if seconds else "0"

    return [[f"overlaps after “{kind}”, which the guarantees name", *(cell(r, kind) for r in results)] for kind in kinds]


def _table(head: list[str], rows: list[list[object]]) -> list[str]:
    return ["| " + " | ".join(map(str, row)) + " |" for row in (head, ["---"] * len(head), *rows)]


def _seconds(value: float) -> str:
    return f"{value:.2f} s"


def _quantile(values: list[float]) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[98] if len(values) > 1 else 0.0


def _commit() -> str:
    done = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=Path(__file__).parent)
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
