"""One fixture file a concern; see CONTRIBUTING.md."""

pytest_plugins = ["fixtures_postgresql", "fixtures_redis"]
