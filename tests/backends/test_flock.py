"""flock: — the contract, and what only files can do wrong."""

from pathlib import Path

import pytest

from cronlock.testing import BackendContract
from shell import Shell, need_root


class TestContract(BackendContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"flock://{tmp_path}/locks"

    @pytest.fixture
    def dead_url(self, tmp_path: Path) -> str:
        (tmp_path / "loop").symlink_to("/proc/self/fd/nothing")
        return f"flock://{tmp_path}/loop"


@pytest.mark.root
@pytest.mark.parametrize("home", ["missing", "roots"])
def test_a_path_of_a_user_who_can_keep_no_record(home: str) -> None:
    """It locks, as flock(1) would; but what a record is needed for is refused: each tick would run, again and again."""
    need_root()
    with Shell() as sh:
        record = sh.T / "home" / ".local" / "state" / "cronlock"
        if home == "roots":  # sudo keeps HOME
            record.mkdir(parents=True)
        (sh.T / "home").mkdir(exist_ok=True)
        sh.run("touch $T/l; chmod 755 $T $T/home")
        done = sh.run(
            """
            cronlock $T/l echo locks; echo plain=$?
            for i in 1 2; do cronlock --once-per 1d $T/l echo ran; echo once$i=$?; done
            cronlock --min-hold 1h $T/l echo ran; echo hold=$?
            cronlock n echo ran; echo named=$?
            """,
            nobody=True,
            HOME=str(sh.T / "home"),
            CRONLOCK_BACKEND="flock:",
        )
    assert "locks\n" in done.out
    assert "ran\n" not in done.out
    assert [done[what] for what in ("plain", "once1", "once2", "hold", "named")] == ["0", "77", "77", "77", "77"]
    assert done.err.count("set HOME to a directory of this user's own") == 3
