"""How a process finds out that its file was deleted or replaced, without a look at the file.

A look at a file makes its next write slower, so the directory is looked at.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slotwise.processes import _locked_file
from slotwise.processes._directory import OpenDirectory
from slotwise.processes._locked_file import LockedFile

HOUR = 3600 * 10**9


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "files"
    made.mkdir(mode=0o700)
    return made


@pytest.fixture
def file(directory: Path) -> Iterator[LockedFile]:
    opened = LockedFile(OpenDirectory(directory), "s.slots", 1)
    opened.open(create=True)
    yield opened
    opened.close()
    opened.directory.close()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that were looked at."""
    seen: list[str] = []

    def lstat(path: str) -> os.stat_result:
        seen.append(path)
        return os.lstat(path)

    monkeypatch.setattr(_locked_file, "lstat", lstat)
    return seen


def an_hour_later(file: LockedFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the driver's clock be an hour ahead, once the file system's has left the last change."""
    directory = Path(file.directory.path)
    changed, other = directory.stat().st_ctime_ns, directory.parent / "clock"
    while other.touch() or other.stat().st_ctime_ns <= changed:
        pass
    clock = _locked_file.time_ns
    monkeypatch.setattr(_locked_file, "time_ns", lambda: clock() + HOUR)


@pytest.mark.soak
def test_the_file_is_looked_at_while_the_directory_has_just_been_changed(
    file: LockedFile, looks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another change could leave the same time."""
    changed = Path(file.directory.path).stat().st_ctime_ns
    whole_seconds = changed - changed % 10**9
    for its_time, now in [(whole_seconds + 1, whole_seconds + 10**7), (whole_seconds, changed)]:

        def lstat(path: str, its_time: int = its_time) -> Any:
            looks.append(path)
            found = os.lstat(path)
            fields = {"st_ino": found.st_ino, "st_dev": found.st_dev, "st_ctime_ns": its_time}
            return type("Found", (), fields)

        monkeypatch.setattr(_locked_file, "lstat", lstat)
        monkeypatch.setattr(_locked_file, "time_ns", lambda now=now: now)
        looks.clear()
        assert file.is_in_place()
        assert file.is_in_place()
        assert looks == [file.directory.path, file.path] * 2


def deleted(path: Path) -> None:
    path.unlink()


def deleted_and_created(path: Path) -> None:
    path.rename(path.parent.parent / "elsewhere")
    path.touch()


def replaced(path: Path) -> None:
    (path.parent / "other").touch()
    (path.parent / "other").rename(path)


def directory_moved(path: Path) -> None:
    path.parent.rename(path.parent.parent / "moved")


def directory_replaced(path: Path) -> None:
    directory_moved(path)
    path.parent.mkdir(mode=0o700)
    path.touch()


@pytest.mark.parametrize(
    "displace", [deleted, deleted_and_created, replaced, directory_moved, directory_replaced]
)
def test_whatever_displaces_the_file_is_noticed_at_once(
    file: LockedFile, displace: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    an_hour_later(file, monkeypatch)
    assert file.is_in_place()
    assert file.is_in_place()
    displace(Path(file.path))
    assert not file.is_in_place()


def test_a_directory_that_lost_another_file_still_has_this_one(
    file: LockedFile, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (directory / "other").touch()
    an_hour_later(file, monkeypatch)
    assert file.is_in_place()
    (directory / "other").unlink()
    assert file.is_in_place()


# -------------------------------------------------------- the queue for the lock


@pytest.fixture
def queues(tmp_path: Path) -> Iterator[list[LockedFile]]:
    """The queue of one file, as three processes see it."""
    directory = OpenDirectory(tmp_path)
    files = [LockedFile(directory, "s.slots", liveness_byte) for liveness_byte in (1, 2, 3)]
    for file in files:
        file.open(create=True)
    yield files
    for file in files:
        file.close()
    directory.close()


def test_the_longest_wait_for_the_lock_goes_first(queues: list[LockedFile]) -> None:
    first, second, late = queues
    second.announce(since=20.0, now=20.0)
    first.announce(since=10.0, now=20.001)
    assert late.is_anothers_turn(since=20.002, now=20.002)
    assert second.is_anothers_turn(since=20.0, now=20.002)
    assert not first.is_anothers_turn(since=10.0, now=20.002)
    first.leave(10.0)
    # The second needn't announce itself again to be before the newcomer.
    assert late.is_anothers_turn(since=20.003, now=20.003)
    assert not second.is_anothers_turn(since=20.0, now=20.003)
    second.leave(20.0)
    assert not late.is_anothers_turn(since=20.004, now=20.004)


def test_nobody_waits_for_a_process_that_was_killed_while_it_queued(
    queues: list[LockedFile],
) -> None:
    killed, other, _ = queues
    killed.announce(since=10.0, now=10.0)
    assert other.is_anothers_turn(since=10.01, now=10.01)
    assert not other.is_anothers_turn(since=10.03, now=10.03)


def test_the_longest_wait_of_a_process_is_shown(queues: list[LockedFile]) -> None:
    ours, other, _ = queues
    ours.announce(since=10.0, now=20.0)
    ours.announce(since=15.0, now=20.001)  # another thread of the same process
    assert other.is_anothers_turn(since=12.0, now=20.002)
    ours.leave(15.0)
    assert other.is_anothers_turn(since=12.0, now=20.002)
