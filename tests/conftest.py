"""One fixture file a concern; see CONTRIBUTING.md."""

from hypothesis import HealthCheck, settings

pytest_plugins = ["fixtures_store", "fixtures_postgresql", "fixtures_redis", "fixtures_nfs", "fixtures_monitor"]

# A loaded machine of two cores makes examples slowly; that is no fault of theirs
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")


def pytest_addoption(parser):
    parser.addoption("--fuzz", type=int, default=400, help="examples for each test of tests/test_fuzz.py; 100000 is the long form")
