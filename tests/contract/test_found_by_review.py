"""What a cold review has found: each was a bug once."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slotwise import AcquireTimeout, LimitFull, MemorySemaphore, ProcessSemaphore

VALUES = {"label": lambda n: {"label": str(n)}, "plain": lambda _: {}}


@pytest.mark.parametrize("options", [{}, {"ttl": 60.0}])
@pytest.mark.parametrize("how", VALUES)
async def test_what_was_made_before_another_value_was_declared_gives_its_slot_back(
    name: str, options: dict[str, Any], how: str
) -> None:
    other = MemorySemaphore(1, name=name)
    new = MemorySemaphore(2, name=name, **options)
    contexts = [new.cm(**VALUES[how](n)) for n in range(3)]
    for context in contexts:
        async with context:
            pass
    assert (await new.stats()).acquired_slots == 0
    early = new.cm(**VALUES[how](3))
    async with other:  # declares its value again
        pass
    async with new.cm():
        pass
    async with early:
        pass
    assert (await new.stats()).acquired_slots == 0


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers that signal")
def test_a_release_in_a_signal_handler_does_not_disturb_who_replaces_holders() -> None:
    count = 500
    semaphore = MemorySemaphore(count)
    mine = [semaphore.acquire_sync() for _ in range(count)][count // 2 :]
    before = signal.signal(signal.SIGALRM, lambda *_: mine and semaphore.release_sync(mine.pop()))
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        for _ in range(50):
            try:
                held = semaphore.acquire_sync(count - 5, on_full="replace", timeout=0)
            except AcquireTimeout:
                continue
            semaphore.release_sync(held)
            for _ in range(count - semaphore.stats_sync().acquired_slots):
                mine.append(semaphore.acquire_sync())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class OfTeam(MemorySemaphore):
    team = "none"

    def __init__(self, name: str, team: str) -> None:
        super().__init__(2, name=name)
        self.team = team


def test_an_attribute_with_a_default_in_its_class_is_pickled(name: str) -> None:
    assert pickle.loads(pickle.dumps(OfTeam(name, "red"))).team == "red"


async def test_a_refusal_says_when_a_slot_is_expected_though_others_wait_in_the_line() -> None:
    blocks, strict = (
        MemorySemaphore(1, name="in-line"),
        MemorySemaphore(1, name="in-line", max_waiting=0),
    )

    async def work() -> None:
        while not known:
            async with blocks:
                await asyncio.sleep(0)

    known: list[float] = []
    tasks = [asyncio.create_task(work()) for _ in range(3)]
    async with asyncio.timeout(30):
        while not known:
            await asyncio.sleep(0)
            try:
                await strict.release(await strict.acquire())
            except LimitFull as full:
                known += [] if full.estimate is None else [full.estimate]
        await asyncio.gather(*tasks)


@pytest.fixture
def processes(tmp_path: Path) -> Callable[..., ProcessSemaphore]:
    return lambda value, **options: ProcessSemaphore(
        value, name="x", directory=tmp_path / "slots", **options
    )


def test_a_refused_request_does_not_undo_a_resize(
    processes: Callable[..., ProcessSemaphore],
) -> None:
    one, other = processes(2), processes(5)
    one.release_sync(one.acquire_sync())
    one.resize_sync(10)
    with pytest.raises(ValueError, match="7 slots requested"):
        other.acquire_sync(7)
    assert one.stats_sync().max_slots == 10


def test_a_try_at_a_paused_name_with_another_value_leaves_no_waiter(
    processes: Callable[..., ProcessSemaphore],
) -> None:
    one, other = processes(2), processes(1)
    one.release_sync(one.acquire_sync())
    one.pause_sync(60)
    assert other.try_acquire_sync() is None
    assert (other.waiters_sync(), other.stats_sync().acquired_slots) == ([], 0)


def test_how_long_slots_are_held_is_known_though_another_value_is_declared(
    processes: Callable[..., ProcessSemaphore],
) -> None:
    one, other = processes(1, shed="deadline"), processes(2)
    for _ in range(2):
        one.release_sync(one.acquire_sync())
    held = [other.acquire_sync(), other.acquire_sync()]
    assert other.estimate_sync() is not None
    for each in held:
        other.release_sync(each)


def test_a_file_from_before_a_reboot_is_removed_by_whoever_looks(tmp_path: Path) -> None:
    code = (
        "import sys, slotwise.processes._process as p; p._boot_id = lambda: 'before'\n"
        "from slotwise import ProcessSemaphore as P\n"
        "s = P(1, name='x', directory=sys.argv[1]); s.release_sync(s.acquire_sync())\n"
    )
    folder = tmp_path / "slots"
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, env=dict(os.environ))
    assert ProcessSemaphore.names(folder) == ["x"]
    assert ProcessSemaphore.get_acquired_stats_sync(["x"], directory=folder) == {}
    assert ProcessSemaphore.names(folder) == []
