"""Fairness of a file's lock, and the poller that sleeps meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from slotwise.processes._directory import OpenDirectory
from slotwise.processes._lock_queue import LockQueue
from slotwise.processes._locked_file import LockedFile
from slotwise.processes._poller import Poller


@pytest.fixture
def queues(tmp_path: Path) -> Iterator[list[LockQueue]]:
    """The queue of one file, as three processes see it."""
    directory = OpenDirectory(tmp_path)
    files = [LockedFile(directory, "s.slots", liveness_byte) for liveness_byte in (1, 2, 3)]
    for file in files:
        file.open(create=True)
    yield [LockQueue(file) for file in files]
    for file in files:
        file.close()
    directory.close()


def test_the_longest_wait_for_the_lock_goes_first(queues: list[LockQueue]) -> None:
    first, second, late = queues
    second.announce(since=20.0, now=20.0)
    first.announce(since=10.0, now=20.001)
    assert late.is_anothers_turn(since=0.0, now=20.002)
    assert second.is_anothers_turn(since=20.0, now=20.002)
    assert not first.is_anothers_turn(since=10.0, now=20.002)
    first.leave(10.0)
    # The second needn't announce itself again to be before the newcomer.
    assert late.is_anothers_turn(since=0.0, now=20.003)
    assert not second.is_anothers_turn(since=20.0, now=20.003)
    second.leave(20.0)
    assert not late.is_anothers_turn(since=0.0, now=20.004)


def test_nobody_waits_for_a_process_that_was_killed_while_it_queued(
    queues: list[LockQueue],
) -> None:
    killed, other, _ = queues
    killed.announce(since=10.0, now=10.0)
    assert other.is_anothers_turn(since=0.0, now=10.01)
    assert not other.is_anothers_turn(since=0.0, now=10.03)


def test_the_longest_wait_of_a_process_is_shown(queues: list[LockQueue]) -> None:
    ours, other, _ = queues
    ours.announce(since=10.0, now=20.0)
    ours.announce(since=15.0, now=20.001)  # another thread of the same process
    assert other.is_anothers_turn(since=12.0, now=20.002)
    ours.leave(15.0)
    assert other.is_anothers_turn(since=12.0, now=20.002)


def test_a_pidfd_is_forgotten_before_it_is_closed() -> None:
    """A child that another thread forks just then closes what is not forgotten."""
    poller = Poller()
    if not hasattr(os, "pidfd_open"):
        pytest.skip("there are no pidfds here")
    closed: list[int] = []

    def look(frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call" and called is os.close:
            assert frame.f_locals["fd"] not in poller._pidfds.values()
            closed.append(frame.f_locals["fd"])

    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        poller.watch({"a": process.pid, **{f"p{number}": os.getpid() for number in range(40)}})
        sys.setprofile(look)
        try:
            poller.watch({"a": process.pid})
            assert len(closed) == 40
            process.communicate(b"\n")
            assert poller.wait(30) == (False, True)
        finally:
            sys.setprofile(None)
    assert len(closed) == 41
    assert poller.watches((), besides="")
    assert not poller.watches(("a",), besides="")
