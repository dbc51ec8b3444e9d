"""One fixture file a concern; see CONTRIBUTING.md."""

pytest_plugins = ["fixtures_monitor", "fixtures_nfs", "fixtures_postgresql", "fixtures_redis", "fixtures_store"]
