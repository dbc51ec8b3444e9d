"""flock: — the contract, and what only files can do wrong."""

from pathlib import Path

import pytest

from cronlock.testing import BackendContract


class TestContract(BackendContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"flock://{tmp_path}/locks"

    @pytest.fixture
    def dead_url(self, tmp_path: Path) -> str:
        (tmp_path / "loop").symlink_to("/proc/self/fd/nothing")
        return f"flock://{tmp_path}/loop"
