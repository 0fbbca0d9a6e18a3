"""Cancelling a task whose acquisition has ended, unless it releases first."""

from __future__ import annotations

import asyncio
import gc

import pytest

from slotwise._wait.ttl_cancel import TtlCancels


async def _works_forever() -> None:
    await asyncio.Event().wait()


async def test_a_cancel_that_was_sent_ends_the_task_with_its_reason() -> None:
    cancels = TtlCancels()
    task = asyncio.create_task(_works_forever())
    cancels.announce("a", task, "the ttl is over").send()
    with pytest.raises(asyncio.CancelledError, match="the ttl is over"):
        await task
    assert not cancels


async def test_a_task_that_releases_before_the_cancel_arrives_is_not_cancelled() -> None:
    cancels = TtlCancels()
    task = asyncio.create_task(asyncio.sleep(0, "done"))
    cancel = cancels.announce("a", task, "the ttl is over")
    cancel.send()
    cancels.keep_task("a")
    assert await task == "done"
    assert not cancels


async def test_only_the_owner_of_a_key_keeps_its_task() -> None:
    cancels = TtlCancels()
    task = asyncio.create_task(_works_forever())
    cancels.announce("a", task, "the ttl is over", owner=cancels).send()
    cancels.keep_task("a")
    cancels.keep_task("b", owner=cancels)
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_cancel_that_never_arrives_leaves_nothing_behind() -> None:
    cancels = TtlCancels()
    loop = asyncio.new_event_loop()
    task = loop.create_task(asyncio.sleep(0))
    loop.run_until_complete(task)
    on_its_way = cancels.announce("a", task, "the ttl is over")
    on_its_way.send()
    too_late = cancels.announce("b", task, "the ttl is over")
    loop.close()
    too_late.send()
    assert len(cancels) == 2
    del on_its_way, too_late, loop, task
    gc.collect()
    assert not cancels
