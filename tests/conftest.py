"""One fixture file a concern; see CONTRIBUTING.md."""

import signal

from hypothesis import HealthCheck, settings

pytest_plugins = ["fixtures_store", "fixtures_postgresql", "fixtures_redis", "fixtures_nfs", "fixtures_monitor"]

# nohup, or a & in a script, had them ignored, and so would be whatever the tests start
for ignored in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(ignored) == signal.SIG_IGN:
        signal.signal(ignored, signal.default_int_handler if ignored == signal.SIGINT else signal.SIG_DFL)

# A loaded machine of two cores makes examples slowly; that is no fault of theirs
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")


def pytest_addoption(parser):
    parser.addoption("--fuzz", type=int, default=400, help="examples for each test of tests/test_fuzz.py; 100000 is the long form")
