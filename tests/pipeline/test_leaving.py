"""Leaving a run before its end: how it is closed, and what a second look at it says."""

from __future__ import annotations

import asyncio
import contextlib
import itertools

import pytest

from slotwise.pipeline import bounded_map, bounded_map_sync
from slotwise.testing import settle


async def same(item):
    return item


@pytest.mark.parametrize("fn", [same, abs], ids=["tasks", "threads"])
async def test_the_iterator_of_a_run_can_be_closed(fn) -> None:
    before = asyncio.all_tasks()
    run = bounded_map(fn, itertools.count(), 3)
    async with contextlib.aclosing(aiter(run)) as results:
        assert await anext(results) in range(3)
    assert asyncio.all_tasks() == before
    assert run.report.in_flight == 0
    with pytest.raises(RuntimeError, match="was closed"):
        await anext(results)


def test_the_iterator_of_a_run_of_threads_can_be_closed() -> None:
    run = bounded_map_sync(abs, itertools.count(), 3)
    with contextlib.closing(iter(run)) as results:
        assert next(results) in range(3)
    assert run.report.in_flight == 0
    with pytest.raises(RuntimeError, match="was closed"):
        list(results)


@pytest.mark.parametrize("items", [3, 10_000], ids=["all is done", "much is left"])
@pytest.mark.parametrize("fn", [same, abs], ids=["tasks", "threads"])
async def test_a_second_loop_over_a_run_that_was_left_is_refused(fn, items: int) -> None:
    run = bounded_map(fn, range(items), 5)
    async for _ in run:
        break
    await settle()
    with pytest.raises(RuntimeError, match=r"left early.*aiter"):
        async for _ in run:
            pass
    with pytest.raises(RuntimeError, match="left early"):
        await anext(run)
    await run.aclose()
    with pytest.raises(RuntimeError, match="left early"):
        await anext(run)


async def test_an_iterator_that_is_kept_goes_on() -> None:
    results = aiter(bounded_map(same, range(10), 2, ordered=True))
    async for first in results:
        assert first == 0
        break
    assert [r async for r in results] == list(range(1, 10))
    assert [r async for r in results] == []

    kept = iter(bounded_map_sync(abs, range(10), 2, ordered=True))
    assert await asyncio.to_thread(lambda: [next(kept), *kept]) == list(range(10))


async def test_a_run_whose_consumer_timed_out_says_so() -> None:
    async def never(item):
        await asyncio.Event().wait()

    run = bounded_map(never, range(3), 2)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(run), 0.01)
    with pytest.raises(RuntimeError, match="cancelled"):
        await anext(run)


async def test_a_consumer_whose_run_is_closed_by_another_task_is_told() -> None:
    """What is missing must not look like the end of the source."""
    waiting = asyncio.Event()

    async def never(item):
        waiting.set()
        await asyncio.Event().wait()

    run = bounded_map(never, range(1000), 2)
    consumer = asyncio.create_task(anext(run))
    await waiting.wait()
    await run.aclose()
    with pytest.raises(RuntimeError, match="was closed"):
        await consumer
    with pytest.raises(RuntimeError, match="was closed"):
        await anext(run)


async def test_a_run_that_was_entered_and_left_without_a_loop_is_over() -> None:
    run = bounded_map(same, range(100), 2)
    async with run:
        pass
    with pytest.raises(RuntimeError, match="was closed"):
        await anext(run)
