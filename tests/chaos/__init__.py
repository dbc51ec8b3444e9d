"""Chaos: a few cronlocks contend for one name while everything they stand on is killed, frozen, restarted and cut.

    cd tests; ../.venv/bin/python -m chaos --faults 1000 --report ../docs/chaos.md      all backends at once
    cd tests; ../.venv/bin/python -m chaos --backend redis --faults 100 --seed 7 --windows

`job` is the command they run, and writes down what it does; `stores` are the servers and the network; `driver`
injects the faults; `judge` reads what the jobs wrote, and nothing else, to say whether two of them ever acted at once.
Only to explain why nobody acted for a while, it also reads whom the store had as the holder then.
"""
