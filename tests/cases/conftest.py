"""`sh`: a shell whose $CRONLOCK_BACKEND is a store of the test's own; every test runs once per store unless `only` says otherwise."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shell import Shell

STORES = ["flock", "postgresql", "redis"]  # nfs joins here and in `sh` as soon as there is a mount to test on


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def sh(request: pytest.FixtureRequest, store: str) -> Iterator[Shell]:
    with Shell("" if store == "flock" else request.getfixturevalue(f"{store}_url")) as shell:
        yield shell
