"""One fixture file a concern; see CONTRIBUTING.md."""

pytest_plugins = ["fixtures_store", "fixtures_postgresql", "fixtures_redis", "fixtures_nfs", "fixtures_monitor"]
