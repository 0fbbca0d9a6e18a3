"""Items that fail, in whatever way: the rest goes on, and no failure looks like an end."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from slotwise import MemorySemaphore
from slotwise.pipeline import bounded_map, bounded_map_sync, run_bounded, run_bounded_sync
from slotwise.testing import settle

HANGS = 30


WAYS = ["tasks", "threads of a loop", "threads"]


async def collect(results) -> list:
    return [result async for result in results]


async def same(item):
    await asyncio.sleep(0)
    return item


def run_to_its_end(way: str, source, limit: int, **more) -> None:
    if way == "threads":
        run_bounded_sync(abs, source, limit, **more)
    else:
        fn = same if way == "tasks" else abs
        asyncio.run(asyncio.wait_for(run_bounded(fn, source, limit, **more), HANGS))


# ------------------------------------------------------- ordered, with failures


@pytest.mark.parametrize("on_error", ["skip", "collect"])
@pytest.mark.parametrize("more", [{}, {"group_key": str}], ids=["plain", "groups"])
async def test_a_slow_failing_head_does_not_hold_back_what_comes_after_it(on_error, more) -> None:
    head = asyncio.Event()

    async def divide(item: int) -> float:
        if item == 0:
            await head.wait()
        return 6 / item

    results = bounded_map(divide, range(4), limit=4, ordered=True, on_error=on_error, **more)
    taking = asyncio.create_task(collect(results))
    await settle()
    head.set()
    assert await asyncio.wait_for(taking, HANGS) == [6, 3, 2]
    assert results.report.failed == 1


@pytest.mark.parametrize("on_error", ["skip", "collect"])
@pytest.mark.parametrize("way", WAYS)
def test_more_failures_in_a_row_than_may_be_outstanding(way: str, on_error: str) -> None:
    def fail_at_first(item: int) -> int:
        if item < 20:
            raise ValueError(item)
        return item

    async def fail_at_first_in_a_task(item: int) -> int:
        return fail_at_first(item)

    if way == "threads":
        got = list(bounded_map_sync(fail_at_first, range(25), 2, ordered=True, on_error=on_error))
    else:
        fn = fail_at_first_in_a_task if way == "tasks" else fail_at_first
        results = bounded_map(fn, range(25), 2, ordered=True, on_error=on_error)
        got = asyncio.run(asyncio.wait_for(collect(results), HANGS))
    assert got == [20, 21, 22, 23, 24]


# --------------------------------------------------- StopIteration from the work


@pytest.mark.parametrize("stop", [StopIteration, StopAsyncIteration])
@pytest.mark.parametrize("way", WAYS)
def test_a_function_that_raises_stop_iteration_does_not_end_the_run_as_a_success(way, stop) -> None:
    def stops(item: int) -> int:
        if item == 3:
            raise stop("three")
        return item

    async def stops_in_a_task(item: int) -> int:
        return stops(item)

    def results(on_error: str) -> list[int]:
        if way == "threads":
            return list(bounded_map_sync(stops, range(6), 1, on_error=on_error))
        fn = stops_in_a_task if way == "tasks" else stops
        return asyncio.run(collect(bounded_map(fn, range(6), 1, on_error=on_error)))

    with pytest.raises(RuntimeError, match=stop.__name__) as caught:
        results("raise")
    assert isinstance(caught.value.__cause__, stop)
    assert (caught.value.report.done, caught.value.report.failed) == (3, 1)
    assert results("skip") == [0, 1, 2, 4, 5]


@pytest.mark.parametrize("stop", [StopIteration, StopAsyncIteration])
def test_a_failure_that_is_kept_is_never_a_stop_iteration(stop) -> None:
    def stops(item: int) -> None:
        raise stop(item)

    [(item, error)] = run_bounded_sync(stops, [7], 1, on_error="collect").failures
    assert (item, type(error)) == (7, RuntimeError)


# ------------------------------------------------ cancellations that are not ours


@pytest.mark.parametrize("waits", [True, False], ids=["delivered", "on its way"])
@pytest.mark.parametrize("more", [{}, {"group_key": bool}, {"semaphore": 1}], ids=str)
async def test_a_cancellation_that_one_item_had_is_gone_for_the_next(waits: bool, more) -> None:
    if "semaphore" in more:
        more = {"semaphore": MemorySemaphore(value=1)}
    seen = []

    async def breaks() -> None:
        raise ValueError("inside")

    async def work(item: int) -> str:
        task = asyncio.current_task()
        if item == 0:
            task.cancel()
            if waits:
                await asyncio.sleep(0)
            return "not cancelled"
        seen.append(task.cancelling())
        try:
            async with asyncio.timeout(HANGS), asyncio.TaskGroup() as group:
                group.create_task(breaks())
        except ExceptionGroup:
            return "group failed"
        return "group did not fail"

    results = bounded_map(work, range(4), 1, on_error="skip", **more)
    got = await collect(results)
    assert got == ["not cancelled"] * (not waits) + ["group failed"] * 3
    assert seen == [0, 0, 0]
    assert results.report.failed == (1 if waits else 0)


@pytest.mark.parametrize("priority", [None, abs])
async def test_a_source_that_is_cancelled_does_not_end_as_a_success(priority) -> None:
    async def source():
        yield 1
        yield 2
        gone = asyncio.create_task(asyncio.sleep(HANGS))
        gone.cancel()
        await gone
        yield 3

    for fn in (same, abs):
        with pytest.raises(asyncio.CancelledError) as caught:
            await run_bounded(fn, source(), 2, priority=priority)
        assert caught.value.report.done == 2
    assert asyncio.current_task().cancelling() == 0


@pytest.mark.parametrize("more", [{}, {"group_key": str}], ids=["plain", "groups"])
async def test_items_whose_wait_for_a_slot_a_stranger_cancels_have_failed(more) -> None:
    semaphore = MemorySemaphore(value=1)
    theirs = await semaphore.acquire()
    before = asyncio.all_tasks()

    results = bounded_map(same, range(3), semaphore=semaphore, limit=3, on_error="collect", **more)
    taking = asyncio.create_task(collect(results))
    await settle()
    for worker in asyncio.all_tasks() - before - {taking}:
        worker.cancel()
    await settle()
    await semaphore.release(theirs)
    got = await asyncio.wait_for(taking, HANGS)
    failed = [item for item, _ in results.report.failures]
    assert failed != []
    assert sorted(got + failed) == [0, 1, 2]
    assert (await semaphore.stats()).acquired_slots == 0


# ------------------------------------------------------- what a failure ends, and how


async def test_items_that_clean_up_after_a_failure_are_cancelled_once() -> None:
    cancelled = {1: 0, 2: 0}
    cleaned = []
    all_run = asyncio.Event()

    async def work(item: int) -> None:
        if item == 0:
            await all_run.wait()
            raise ValueError("zero")
        if item == 2:
            all_run.set()
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(item * 5):  # they end one after the other
                try:
                    await asyncio.sleep(0)
                except asyncio.CancelledError:
                    cancelled[item] += 1
            cleaned.append(item)

    with pytest.raises(ValueError, match="zero"):
        await run_bounded(work, range(3), 3)
    assert cleaned == [1, 2]
    assert cancelled == {1: 0, 2: 0}


@pytest.mark.parametrize("source", ["list", "async"])
async def test_a_failure_in_a_thread_calls_off_those_who_wait(source: str) -> None:
    """For a slot that somebody else keeps, or for an item that never comes."""
    semaphore = MemorySemaphore(value=2)
    theirs = await semaphore.acquire()
    asked = threading.Event()

    async def never_ends():
        yield 0
        yield 1
        asked.set()
        await asyncio.Event().wait()

    def fail(item: int) -> None:
        if source == "list":
            while not semaphore.stats_sync().waiting:
                time.sleep(0.001)
        else:
            assert asked.wait(HANGS)
        raise ValueError(item)

    items, more = ([0, 1], {"semaphore": semaphore}) if source == "list" else (never_ends(), {})
    with pytest.raises(ValueError, match=r"0|1"):
        await asyncio.wait_for(run_bounded(fail, items, 3, **more), HANGS)
    await semaphore.release(theirs)
    stats = await semaphore.stats()
    assert (stats.acquired_slots, stats.waiting) == (0, 0)


# ----------------------------------------------------------- sources and semaphores


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "more", [{"priority": int}, {"group_key": lambda item: 0}], ids=["priority", "group_key"]
)
def test_items_pulled_ahead_are_run_before_the_error_of_the_source_is_raised(way, more) -> None:
    def source():
        yield from range(3)
        raise OSError("gone")

    with pytest.raises(OSError, match="gone") as caught:
        run_to_its_end(way, source(), 4, **more)
    assert caught.value.report.done == 3


@pytest.mark.parametrize("in_threads", [False, True])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
async def test_a_resize_below_its_weight_fails_the_item_and_not_the_run(
    on_error, in_threads: bool
) -> None:
    semaphore = MemorySemaphore(value=4)
    theirs = await semaphore.acquire(4)
    started = []

    async def note(item: int) -> int:
        started.append(item)
        return item

    fn = (lambda item: (started.append(item), item)[1]) if in_threads else note
    results = bounded_map(
        fn, [3, 1, 2], semaphore=semaphore, limit=1, weight=lambda item: item, on_error=on_error
    )
    taking = asyncio.create_task(collect(results))
    while not (await semaphore.stats()).waiting:
        await asyncio.sleep(0)
    await semaphore.resize(2)  # below the weight of the one that waits
    await semaphore.release(theirs)
    if on_error == "raise":
        with pytest.raises(ValueError, match="3"):
            await asyncio.wait_for(taking, HANGS)
        assert started == []
    else:
        assert sorted(await asyncio.wait_for(taking, HANGS)) == [1, 2]
        assert results.report.failed == 1


async def test_failures_behind_a_slow_item_take_no_room() -> None:
    head = asyncio.Event()

    async def fail_behind_the_head(item: int) -> int:
        if item == 0:
            await head.wait()
            return item
        raise ValueError(item)

    results = bounded_map(fail_behind_the_head, range(50), 2, ordered=True, on_error="skip")
    taking = asyncio.create_task(collect(results))
    await settle()
    assert results.report.failed == 49
    head.set()
    assert await asyncio.wait_for(taking, HANGS) == [0]
