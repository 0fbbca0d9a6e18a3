"""What a forked child renews: locks, then what is the parent's, then threads."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from slotwise._core import fork
from tests._stdlib import leave

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork()"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


def succeeds_in_child(check: Callable[[], bool]) -> bool:
    child = os.fork()
    if not child:
        signal.alarm(30)
        code = 1
        try:
            code = 0 if check() else 1
        finally:
            leave(code)
    return os.waitpid(child, 0)[1] == 0


def test_a_lock_of_another_thread_is_free_in_the_child() -> None:
    lock = fork.new_lock()
    taken, enough = threading.Event(), threading.Event()

    def take() -> None:
        with lock:
            taken.set()
            enough.wait(30)

    thread = threading.Thread(target=take)
    thread.start()
    assert taken.wait(30)
    assert succeeds_in_child(lambda: lock.acquire(timeout=20))
    assert not lock.acquire(blocking=False), "the parent's is as it was"
    enough.set()
    thread.join()


def test_a_thread_that_forks_inside_a_lock_leaves_it_as_usual() -> None:
    lock = fork.new_lock()
    with lock:
        child = os.fork()
    if not child:
        leave(int(not lock.acquire(blocking=False)))
    assert os.waitpid(child, 0)[1] == 0


SOURCE = Path(fork.__file__).parents[1]


def modules_with(pattern: str) -> list[str]:
    return sorted(
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if re.search(pattern, path.read_text())
    )


def test_nobody_else_registers_with_the_interpreter() -> None:
    assert modules_with(r"os\.register_at_fork\(") == ["_core/fork.py"]


def test_every_lock_that_outlives_a_call_is_one_that_children_renew() -> None:
    """A purge is over with the process that runs it, and its locks with it."""
    users = modules_with(r"threading\.R?Lock\(\)")
    assert [user for user in users if not user.startswith("purge/")] == ["_core/fork.py"]
