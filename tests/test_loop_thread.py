"""LoopThread: coroutines that plain threads wait for, in an event loop of another thread."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from slotwise._bounded.loop_thread import LoopThread


def until(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.001)


def threads_called(name: str) -> int:
    return sum(each.name == name for each in threading.enumerate())


async def double(number: int) -> int:
    await asyncio.sleep(0)
    if number < 0:
        raise LookupError(number)
    return 2 * number


def test_a_call_after_threads_were_exhausted_starts_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    loop = LoopThread("exhausted")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        coroutine = double(3)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            loop.run(coroutine)
        coroutine.close()
    assert loop.run(double(3)) == 6
    loop.close()


def test_stop_cancels_what_runs_and_starts_nothing_more() -> None:
    loop = LoopThread("stopping")
    begun = threading.Event()

    async def wait_forever() -> None:
        begun.set()
        await asyncio.get_running_loop().create_future()

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(loop.run, wait_forever())
        assert begun.wait(30)
        loop.stop()
        with pytest.raises(asyncio.CancelledError):
            waiting.result(30)
    with pytest.raises(asyncio.CancelledError):
        loop.run(double(1))
    loop.close()


def test_a_result_that_came_as_it_was_cancelled_is_not_hidden() -> None:
    loop = LoopThread("late results")
    begun = threading.Event()

    async def result_all_the_same() -> str:
        begun.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            return "a slot"
        return "never"

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(loop.run, result_all_the_same())
        assert begun.wait(30)
        loop.stop()
        assert waiting.result(30) == "a slot"
    loop.close()


def test_the_thread_ends_with_its_owner() -> None:
    loop = LoopThread("owned")
    loop.run(double(1))
    del loop
    gc.collect()
    until(lambda: threads_called("owned") == 0)
