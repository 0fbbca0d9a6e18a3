"""Fairness of a file's lock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slotwise.processes._directory import OpenDirectory
from slotwise.processes._locked_file import LockedFile


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
