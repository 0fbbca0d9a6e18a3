"""Each item runs in a copy of the caller's context; the source has one for its whole life."""

from __future__ import annotations

import asyncio
import contextvars

import pytest

from slotwise.pipeline import bounded_map, bounded_map_sync, run_bounded, run_bounded_sync

who = contextvars.ContextVar("who", default="nobody")


@pytest.fixture(params=["tasks", "threads of a loop", "threads"])
def run(request):
    """Run a plain function over items, in one of the ways; the results in order."""

    def run(work, source, limit, **more):
        async def in_a_task(item):
            seen = work(item)
            await asyncio.sleep(0)
            assert who.get() == f"item {item}"  # still its own, after others have run
            return seen

        if request.param == "threads":
            return list(bounded_map_sync(work, source, limit, ordered=True, **more))

        async def main():
            fn = in_a_task if request.param == "tasks" else work
            return [r async for r in bounded_map(fn, source, limit, ordered=True, **more)]

        return contextvars.copy_context().run(asyncio.run, main())

    return run


def look_and_change(item):
    seen = who.get()
    who.set(f"item {item}")
    return seen


@pytest.mark.parametrize("limit", [1, 3])
@pytest.mark.parametrize(
    "more", [{}, {"group_key": lambda item: item % 2}], ids=["plain", "groups"]
)
def test_items_see_the_callers_context_and_not_each_others(run, limit: int, more) -> None:
    token = who.set("the caller")
    try:
        assert run(look_and_change, range(6), limit, **more) == ["the caller"] * 6
        assert who.get() == "the caller"
    finally:
        who.reset(token)


def test_what_weights_and_priorities_set_is_not_seen_by_items(run) -> None:
    def ask(item):
        who.set("the question")
        return 1

    assert run(look_and_change, range(4), 2, priority=ask) == ["nobody"] * 4
    assert run(look_and_change, range(4), 2, weight=ask) == ["nobody"] * 4


def test_a_source_keeps_one_context_whoever_pulls(run) -> None:
    seen = []

    def source():
        seen.append(who.get())
        token = who.set("the source")
        for item in range(8):
            seen.append(who.get())
            yield item
        who.reset(token)  # fails in another context than it was set in

    token = who.set("the caller")
    try:
        assert run(look_and_change, source(), 3) == ["the caller"] * 8
    finally:
        who.reset(token)
    assert seen == ["the caller"] + ["the source"] * 8


@pytest.mark.parametrize("in_threads", [False, True])
@pytest.mark.parametrize("priority", [None, abs])
async def test_an_async_source_keeps_one_context_too(in_threads: bool, priority) -> None:
    async def source():
        token = who.set("the source")
        for item in range(8):
            assert who.get() == "the source"
            yield item
            await asyncio.sleep(0)
        who.reset(token)

    async def task_work(item):
        return look_and_change(item)

    fn = look_and_change if in_threads else task_work
    who.set("the caller")
    results = bounded_map(fn, source(), 3, priority=priority)
    assert [r async for r in results] == ["the caller"] * 8


def test_runs_without_results_have_it_too() -> None:
    seen = []
    token = who.set("the caller")
    try:
        run_bounded_sync(lambda item: seen.append(look_and_change(item)), range(3), 1)
        asyncio.run(run_bounded(lambda item: seen.append(look_and_change(item)), range(3), 1))
    finally:
        who.reset(token)
    assert seen == ["the caller"] * 6


def test_an_equal_value_that_an_item_sets_is_not_seen_by_the_next(run) -> None:
    var = contextvars.ContextVar("var")
    token = var.set(callers := [])

    def work(item):
        is_the_callers = var.get() is callers
        var.set([])
        who.set(f"item {item}")
        return is_the_callers

    try:
        assert run(work, range(4), 1) == [True] * 4
    finally:
        var.reset(token)
