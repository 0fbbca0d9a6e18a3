"""The quick lane under real threads and event loops, switched as often as Python can."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from tests.ledger import invariants
from tests.memory._inside import ledger_of

from slotwise import AcquireTimeout, MemorySemaphore

pytestmark = pytest.mark.soak

SECONDS = 1.0
PLAIN_THREADS = 8
LOOPS = 4
TASKS_IN_EACH = 4


@pytest.fixture(autouse=True)
def switching_all_the_time() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


class Doorman:
    """Counts who is inside, by itself."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.most_seen = 0
        self.visits = 0
        self._inside = 0
        self._lock = threading.Lock()

    def enter(self, slots: int = 1) -> None:
        with self._lock:
            self._inside += slots
            self.visits += 1
            self.most_seen = max(self.most_seen, self._inside)

    def leave(self, slots: int = 1) -> None:
        with self._lock:
            self._inside -= slots

    @property
    def inside(self) -> int:
        return self._inside


def visit_from_thread(
    sem: MemorySemaphore, doorman: Doorman, choose: random.Random, wide: int
) -> None:
    way = choose.randrange(5)
    if way == 0:
        with sem:
            doorman.enter()
            doorman.leave()
    elif way == 1:
        with sem.cm():
            doorman.enter()
            doorman.leave()
    elif way == 2:
        acquired = sem.try_acquire_sync(wide)
        if acquired is not None:
            doorman.enter(wide)
            doorman.leave(wide)
            assert sem.release_sync(acquired)
    else:
        slots = wide if way == 3 else 1
        try:
            acquired = sem.acquire_sync(slots, timeout=choose.choice([0, 0.0001, 0.01]))
        except AcquireTimeout:
            return
        doorman.enter(slots)
        doorman.leave(slots)
        assert sem.release_sync(acquired.acquisition_id)
        assert not sem.release_sync(acquired.acquisition_id)


async def visit_from_task(
    sem: MemorySemaphore, doorman: Doorman, choose: random.Random, wide: int
) -> None:
    way = choose.randrange(5)
    if way <= 1:
        async with sem:
            doorman.enter()
            try:
                await asyncio.sleep(0)
            finally:
                doorman.leave()
    elif way == 2:
        async with sem.cm():
            doorman.enter()
            try:
                await asyncio.sleep(0)
            finally:
                doorman.leave()
    elif way == 3:
        acquired = await sem.try_acquire(wide)
        if acquired is not None:
            doorman.enter(wide)
            doorman.leave(wide)
            assert await sem.release(acquired)
    else:
        try:
            acquired = await sem.acquire(timeout=choose.choice([0, 0.0001, 0.01]))
        except AcquireTimeout:
            return
        doorman.enter()
        doorman.leave()
        assert await sem.release(acquired)


async def visits_of_a_loop(
    sem: MemorySemaphore, doorman: Doorman, seed: int, until: float, wide: int
) -> None:
    async def keep_visiting(choose: random.Random) -> None:
        while time.monotonic() < until:
            visit = asyncio.ensure_future(visit_from_task(sem, doorman, choose, wide))
            if choose.random() < 0.2:
                await asyncio.sleep(0)
                visit.cancel()
            await asyncio.wait([visit])
            if not visit.cancelled():
                visit.result()

    await asyncio.gather(
        *(keep_visiting(random.Random(100 * seed + task)) for task in range(TASKS_IN_EACH))
    )


def crowd(sem_of: list[MemorySemaphore], doorman: Doorman, wide: int, *, resize: bool) -> None:
    """Everybody comes at once; ends when all have left."""
    until = time.monotonic() + SECONDS
    failures: list[BaseException] = []
    workers = PLAIN_THREADS + LOOPS
    start = threading.Barrier(workers + resize)

    def run(number: int) -> None:
        sem = sem_of[number % len(sem_of)]
        try:
            start.wait()
            if number < PLAIN_THREADS:
                choose = random.Random(number)
                while time.monotonic() < until:
                    visit_from_thread(sem, doorman, choose, wide)
            elif number < workers:
                asyncio.run(visits_of_a_loop(sem, doorman, number, until, wide))
            else:
                choose = random.Random(number)
                while time.monotonic() < until:
                    sem.resize_sync(choose.randint(wide, doorman.most))
                    time.sleep(0.0005)  # so that others come to something in between
                sem.resize_sync(doorman.most)
        except BaseException as failure:
            failures.append(failure)

    threads = [
        threading.Thread(target=run, args=(number,), daemon=True)
        for number in range(workers + resize)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS + 15)
    stats = sem_of[0].stats_sync()
    assert not failures, failures
    assert not any(thread.is_alive() for thread in threads), f"somebody is stuck: {stats}"


def assert_all_left(sem: MemorySemaphore, doorman: Doorman) -> None:
    assert doorman.most_seen <= doorman.most
    assert doorman.inside == 0
    assert doorman.visits > 100, "hardly anybody came"
    stats = sem.stats_sync()
    assert stats.acquired_slots == 0
    assert stats.waiting == 0
    assert not sem.locked_sync()


@pytest.mark.parametrize("value", [1, 2, 5])
def test_a_crowd_of_threads_and_loops_never_exceeds_the_value_and_all_leave(value):
    sem = MemorySemaphore(value=value)
    doorman = Doorman(value)
    crowd([sem], doorman, min(value, 2), resize=False)
    assert_all_left(sem, doorman)
    invariants.check(ledger_of(sem))


def test_a_crowd_with_many_instances_of_one_name_survives_resizing():
    sems = [MemorySemaphore(value=6, name="quick lane crowd") for _ in range(4)]
    doorman = Doorman(6)
    crowd(sems, doorman, 2, resize=True)
    assert_all_left(sems[0], doorman)
    invariants.check(ledger_of(sems[0]))


def test_a_ticket_that_was_cancelled_in_a_loop_that_rests_now_keeps_no_slot():
    sem = MemorySemaphore(value=1)
    held = sem.acquire_sync()

    async def wait_and_give_up() -> None:
        visit = asyncio.ensure_future(sem.__aenter__())
        await asyncio.sleep(0)
        visit.cancel()
        await asyncio.wait([visit])
        assert visit.cancelled()

    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(wait_and_give_up())
        assert sem.release_sync(held)
        assert sem.try_acquire_sync() is not None, "the slot is on its way to nobody"
    finally:
        loop.close()
