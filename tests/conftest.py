"""One fixture file a concern; see CONTRIBUTING.md."""

from hypothesis import HealthCheck, settings

pytest_plugins = ["fixtures_store", "fixtures_postgresql", "fixtures_redis", "fixtures_nfs", "fixtures_monitor"]

# A loaded machine of two cores makes examples slowly; that is no fault of theirs
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")
