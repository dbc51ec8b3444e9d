"""`python -m benchmarks`, from the checkout's root with what ./test installs: what cronlock costs, beside its peers, in one run.

Every part writes one Markdown table; `--report docs/performance.md` puts each between its markers there. cronlock is
measured as its users have it: built as a wheel and installed into a virtual environment of its own.
"""
