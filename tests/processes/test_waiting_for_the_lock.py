"""Who waits for a file's lock, and whom it lets pass; and what is watched meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from slotwise.processes._journal import Journal
from slotwise.processes._open_folder import OpenFolder
from slotwise.processes._poller import Poller


@pytest.fixture
def journals(tmp_path: Path) -> Iterator[list[Journal]]:
    """One file, as three processes have it open."""
    opened = [Journal(OpenFolder(tmp_path), "s.slots", life) for life in (1, 2, 3)]
    for journal in opened:
        journal.open(create=True)
    yield opened
    for journal in opened:
        journal.close()


def test_all_who_wait_are_let_pass_the_longest_first(journals: list[Journal]) -> None:
    first, second, late = journals
    second.knock(since=20.0, now=20.0)
    first.knock(since=10.0, now=20.001)
    assert late.is_anothers_turn(since=0.0, now=20.002)
    assert second.is_anothers_turn(since=20.0, now=20.002)
    assert not first.is_anothers_turn(since=10.0, now=20.002)
    first.stop_knocking(10.0)
    # With the first gone, the second need not knock again to be before the newcomer.
    assert late.is_anothers_turn(since=0.0, now=20.003)
    assert not second.is_anothers_turn(since=20.0, now=20.003)
    second.stop_knocking(20.0)
    assert not late.is_anothers_turn(since=0.0, now=20.004)


def test_nobody_waits_for_one_who_was_killed_at_the_door(journals: list[Journal]) -> None:
    killed, other, _ = journals
    killed.knock(since=10.0, now=10.0)
    assert other.is_anothers_turn(since=0.0, now=10.01)
    assert not other.is_anothers_turn(since=0.0, now=10.03)


def test_the_longest_wait_of_a_process_is_shown(journals: list[Journal]) -> None:
    ours, other, _ = journals
    ours.knock(since=10.0, now=20.0)
    ours.knock(since=15.0, now=20.001)  # another thread of it
    assert other.is_anothers_turn(since=12.0, now=20.002)
    ours.stop_knocking(15.0)
    assert other.is_anothers_turn(since=12.0, now=20.002)


def test_a_descriptor_is_out_of_the_books_before_it_is_closed() -> None:
    """A child that is forked by another thread just then closes what is in the books."""
    watch = Poller()
    if not hasattr(os, "pidfd_open"):
        pytest.skip("there are no pidfds here")
    closed: list[int] = []

    def look(frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call" and called is os.close:
            assert frame.f_locals["fd"] not in watch._pidfds.values()
            closed.append(frame.f_locals["fd"])

    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        watch.extend({"a": process.pid, **{f"p{number}": os.getpid() for number in range(40)}})
        sys.setprofile(look)
        try:
            watch.extend({"a": process.pid})
            assert len(closed) == 40
            process.communicate(b"\n")
            assert watch.wait(30) == (False, True)
        finally:
            sys.setprofile(None)
    assert len(closed) == 41
    assert watch.knows((), besides="")
    assert not watch.knows(("a",), besides="")
