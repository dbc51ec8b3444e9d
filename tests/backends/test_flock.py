"""flock: — the contract, and what only files can do wrong."""

import fcntl
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cronlock import clock
from cronlock.backends import flock
from cronlock.backends.flock import connect
from cronlock.errors import BackendError
from cronlock.model import Busy
from cronlock.testing import BackendContract, finished, grant, soon
from fixtures_store import Started
from shell import Shell, need_root

Start = Callable[..., Started]
Finish = Callable[..., tuple[int, str, str]]


class TestContract(BackendContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"flock://{tmp_path}/locks"

    @pytest.fixture
    def dead_url(self, tmp_path: Path) -> str:
        (tmp_path / "loop").symlink_to("/proc/self/fd/nothing")
        return f"flock://{tmp_path}/loop"


@pytest.mark.parametrize(("text", "said"), [('{"v": 9}', "has format 9, this cronlock knows 1"), ("4711\nb", "record unreadable: ")])
def test_a_record_that_is_not_ours_is_said_to_people(tmp_path: Path, text: str, said: str) -> None:
    """And shown beside all others, which can be read."""
    (tmp_path / "j.lock").write_text(text)
    backend = connect(f"flock://{tmp_path}")
    assert said in backend.status("j", soon()).detail
    assert (tmp_path / "j.lock").read_text() == text
    if "v" not in text:
        lease = backend.try_acquire(grant("j"), soon())
        lease.release(finished(lease), soon())
        assert (tmp_path / "j.lock.broken").read_text() == text
        assert backend.status("j", soon()).detail == ""


def test_released_is_free_although_another_has_the_descriptor(tmp_path: Path) -> None:
    """As the guard has, or a process that inherited it."""
    backend = connect(f"flock://{tmp_path}")
    for leave in (lambda lease: lease.release(finished(lease), soon()), lambda lease: lease.withdraw()):
        lease = backend.try_acquire(grant("j"), soon())
        copy = os.dup(lease.fds[0])
        leave(lease)
        again = backend.try_acquire(grant("j"), soon())
        assert not isinstance(again, Busy)
        os.close(copy)
        again.release(finished(again), soon())


@pytest.mark.parametrize("times", [1, 3, 1000])
def test_a_file_replaced_between_open_and_lock_is_not_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Others would lock the new one. It is opened again, but not for ever."""
    path, locked, replaced = tmp_path / "j.lock", flock._locked, []

    def late(fd: int) -> bool:
        if len(replaced) < times:
            replaced.append(fd)
            (tmp_path / "new").touch()
            os.replace(tmp_path / "new", path)
        return locked(fd)

    monkeypatch.setattr(flock, "_locked", late)
    backend = connect(f"flock://{tmp_path}")
    if times == 1000:
        with pytest.raises(BackendError, match="again and again"):
            backend.try_acquire(grant("j"), soon())
    else:
        lease = backend.try_acquire(grant("j"), soon())
        lease.renew(soon())
        assert len(replaced) == times


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


def test_a_disk_that_is_full_at_the_claim_costs_no_period(finish: Finish, tmp_path: Path) -> None:
    """Part of the new record would fit: the old one stays, byte for byte, and nothing runs."""
    backend, record = f"flock://{tmp_path}/locks", tmp_path / "locks/job.lock"
    assert finish("--once-per", "1d", "job", "true", backend=backend)[0] == 0
    before = record.read_bytes()
    status, out, err = finish("--once-per", "7d", "job", "echo", "ran", backend=backend, preexec_fn=lambda: _limit(0, len(before) + 20))
    assert (status, out) == (69, "")
    assert "File too large" in err
    assert record.read_bytes() == before
    assert finish("--once-per", "7d", "job", "echo", "ran", backend=backend) == (0, "ran\n", "")
    assert finish("--once-per", "1d", "job", "echo", "ran", backend=backend) == (75, "", "")


def test_a_disk_that_is_full_at_the_end_is_said_and_changes_nothing(start: Start, finish: Finish, tmp_path: Path) -> None:
    backend = f"flock://{tmp_path}/locks"
    job = start("job", "sh", "-c", "echo up; read line; exit 3", backend=backend, stdin=subprocess.PIPE)
    assert job.stdout and job.stdout.readline() == "up\n"
    _limit(job.pid, 100)
    _, err = job.communicate("go\n", 30)
    assert job.returncode == 3
    assert err.count("\n") == 1 and "File too large; how this run ended is not on record" in err
    assert finish("job", "true", backend=backend) == (0, "", "")


def test_what_a_write_that_was_cut_off_left_behind_its_line(finish: Finish, tmp_path: Path) -> None:
    backend, record = f"flock://{tmp_path}/locks", tmp_path / "locks/job.lock"
    assert finish("--once-per", "1d", "job", "true", backend=backend)[0] == 0
    record.write_bytes(record.read_bytes() + b'"status": 0}]}\n')
    assert finish("--once-per", "1d", "job", "true", backend=backend) == (75, "", "")


def test_a_directory_in_place_of_the_lock_file(finish: Finish, tmp_path: Path) -> None:
    """Is a fault of the place, as a pipe is, and no store that is away: that would run the command without a lock."""
    (tmp_path / "locks/job.lock").mkdir(parents=True)
    code, out, err = finish("--on-unavailable", "run", "job", "echo", "ran", backend=f"flock://{tmp_path}/locks")
    assert (code, out) == (78, "") and "is no regular file" in err


def _limit(pid: int, size: int) -> None:
    """As a full disk does, but for this process alone: what fits is written, and then no more."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def test_a_wait_that_is_over_on_a_slow_host(tmp_path: Path) -> None:
    """The timer goes on ticking until it is switched off: no tick breaks into that, however late it is."""
    holder, waiter = (os.open(tmp_path / "l", os.O_RDWR | os.O_CREAT) for _ in range(2))
    fcntl.flock(holder, fcntl.LOCK_EX)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        ends = [flock._blocking(waiter, clock.now() + 0.001) for _ in range(1000)]
    finally:
        for process in busy:
            process.kill()
            process.wait()
        os.close(holder)
        os.close(waiter)
    assert not any(ends)
