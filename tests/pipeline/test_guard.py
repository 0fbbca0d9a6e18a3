"""MemoryGuard: marks, sampling, and what a run does about them; gauge and clock by hand."""

from __future__ import annotations

import asyncio
import os

import pytest

from slotwise._bounded.memory_guard import MB, Pressure, available_memory, resident_memory
from slotwise.pipeline import MemoryGuard, MemoryLimitExceeded, run_bounded, run_bounded_sync
from slotwise.testing import settle


class Gauge:
    def __init__(self, mb: float = 0) -> None:
        self.mb = mb
        self.read = 0

    def __call__(self) -> int:
        self.read += 1
        return int(self.mb * MB)


class Hand:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def gauge() -> Gauge:
    return Gauge()


@pytest.fixture
def hand() -> Hand:
    return Hand()


@pytest.fixture
def guard(gauge: Gauge, hand: Hand) -> MemoryGuard:
    return MemoryGuard(100, gauge=gauge, clock=hand)


def test_marks_are_passed_strictly(guard: MemoryGuard, gauge: Gauge, hand: Hand) -> None:
    found = {}
    for mb in (10, 85, 86, 95, 96, 10):
        gauge.mb = mb
        hand.now += 0.1
        found[mb] = guard.check()
    assert found == {
        10: Pressure.FREE,
        85: Pressure.FREE,
        86: Pressure.SLOW,
        95: Pressure.SLOW,
        96: Pressure.STOP,
    }
    assert guard.peak_memory == 96 * MB


async def test_above_the_first_mark_one_at_a_time_and_never_a_standstill(
    guard: MemoryGuard, gauge: Gauge, hand: Hand
) -> None:
    doors = [asyncio.Event() for _ in range(6)]
    running: set[int] = set()

    async def work(item: int) -> None:
        running.add(item)
        await doors[item].wait()
        running.discard(item)

    run = asyncio.create_task(run_bounded(work, range(6), limit=3, memory_guard=guard))
    await settle()
    assert running == {0, 1, 2}
    gauge.mb = 90
    hand.now += 0.1
    doors[0].set()
    await settle()
    assert running == {1, 2}
    doors[1].set()
    doors[2].set()
    await settle()
    assert running == {3}
    doors[3].set()
    await settle()
    assert running == {4}
    gauge.mb = 10
    hand.now += 0.1
    for door in doors:
        door.set()
    report = await run
    assert report.done == 6
    assert report.back_pressure_seconds > 0
    assert report.peak_memory == 90 * MB
    assert report.memory == 10 * MB


async def test_above_the_second_mark_what_was_started_is_finished(
    guard: MemoryGuard, gauge: Gauge, hand: Hand
) -> None:
    door = asyncio.Event()
    finished = []

    async def work(item: int) -> None:
        if item == 0:
            gauge.mb = 96
            hand.now += 1
            return
        await door.wait()
        finished.append(item)

    run = asyncio.create_task(run_bounded(work, range(100), limit=1, memory_guard=guard))
    with pytest.raises(MemoryLimitExceeded):
        await run
    gauge.mb, hand.now = 0, 5
    started = asyncio.Event()

    async def hold(item: int) -> None:
        started.set()
        if item == 1:
            gauge.mb = 96
            hand.now += 1
            return
        await door.wait()
        finished.append(item)

    run = asyncio.create_task(run_bounded(hold, range(100), limit=2, memory_guard=guard))
    await started.wait()
    await settle()
    assert not run.done()
    door.set()
    with pytest.raises(MemoryLimitExceeded) as caught:
        await run
    assert finished == [0]
    assert (caught.value.report.done, caught.value.report.cancelled) == (2, 0)


@pytest.mark.parametrize("group_key", [None, lambda item: item % 3])
def test_threads_obey_the_marks_too(group_key) -> None:
    gauge = Gauge(90)
    guard = MemoryGuard(100, gauge=gauge, interval=0)
    running, most = [], []

    def work(item):
        running.append(item)
        most.append(len(running))
        running.remove(item)

    report = run_bounded_sync(work, range(50), 8, memory_guard=guard, group_key=group_key)
    assert (report.done, max(most)) == (50, 1)
    gauge.mb = 96
    with pytest.raises(MemoryLimitExceeded):
        run_bounded_sync(work, range(50), 8, memory_guard=guard, group_key=group_key)


def test_the_default_gauge_is_this_process() -> None:
    assert 5 * MB < resident_memory() < 100_000 * MB


def test_the_smallest_limit_of_the_container_counts(tmp_path) -> None:
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    me = tmp_path / "cgroup"
    assert available_memory(tmp_path / "none", me) == machine
    two = tmp_path / "two"
    (two / "a" / "b").mkdir(parents=True)
    (two / "memory.max").write_text("max\n")
    (two / "a" / "memory.max").write_text("5000\n")
    (two / "a" / "b" / "memory.max").write_text("9000\n")
    me.write_text("0::/a/b\n")
    assert available_memory(two, me) == 5000
    one = tmp_path / "one"
    (one / "memory" / "pod").mkdir(parents=True)
    (one / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (one / "memory" / "pod" / "memory.limit_in_bytes").write_text("7000\n")
    me.write_text("3:cpu,cpuacct:/x\n5:memory:/pod\n")
    assert available_memory(one, me) == 7000


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"limit_mb": 0}, ValueError),
        ({"limit_mb": "800"}, TypeError),
        ({"slow_at": 0.9, "stop_at": 0.5}, ValueError),
        ({"interval": -1}, ValueError),
    ],
)
def test_wrong_marks_are_told(arguments, error) -> None:
    with pytest.raises(error):
        MemoryGuard(**arguments)
