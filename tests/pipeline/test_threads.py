"""Plain functions in worker threads, with an event loop and without."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from tests import _fresh_processes

from slotwise import MemorySemaphore, WouldBlockLoop
from slotwise.pipeline import (
    bounded_map,
    bounded_map_sync,
    run_bounded,
    run_bounded_sync,
)


class Work:
    """Items that run until they are let go, counted independently."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.started: list[object] = []
        self.now = self.most = 0
        self._open: set[object] = set()

    def __call__(self, item):
        with self._changed:
            self.started.append(item)
            self.now += 1
            self.most = max(self.most, self.now)
            self._changed.notify_all()
            self._changed.wait_for(lambda: item in self._open, timeout=20)
            self.now -= 1
            self._changed.notify_all()
        return item

    def until(self, what) -> None:
        with self._changed:
            assert self._changed.wait_for(what, timeout=20)

    def let_go(self, *items) -> None:
        with self._changed:
            self._open.update(items)
            self._changed.notify_all()


def same(item):
    return item


def pipeline_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("slotwise-pipeline")]


@pytest.fixture(autouse=True)
def no_thread_is_left_behind():
    yield
    gc.collect()
    deadline = time.monotonic() + 10
    while pipeline_threads() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert pipeline_threads() == []


def test_leaving_the_loop_stops_the_threads() -> None:
    for _ in bounded_map_sync(same, itertools.count(), limit=3):
        break
    results = bounded_map_sync(same, itertools.count(), limit=3)
    for _ in results:
        break
    results.close()
    assert results.report.in_flight == 0


async def test_a_cancelled_run_waits_for_what_runs_in_threads() -> None:
    work = Work()
    run = asyncio.create_task(run_bounded(work, itertools.count(), limit=2))
    while work.now < 2:
        await asyncio.sleep(0)
    run.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not run.done()
    work.let_go(0, 1)
    with pytest.raises(asyncio.CancelledError) as caught:
        await run
    assert caught.value.report.done == 2
    assert work.now == 0


async def test_a_cancelled_run_gives_up_its_pull_from_an_async_source() -> None:
    waiting = asyncio.Event()

    async def never():
        waiting.set()
        await asyncio.Event().wait()
        yield 1

    run = asyncio.create_task(run_bounded(same, never(), limit=2))
    while not waiting.is_set():
        await asyncio.sleep(0)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run


def test_a_contended_semaphore_is_waited_for_in_line_and_given_up_on_close() -> None:
    semaphore = MemorySemaphore(value=2)
    others = semaphore.acquire_sync(2)
    results = bounded_map_sync(same, itertools.count(), semaphore=semaphore)
    with results:
        while semaphore.stats_sync().waiting == 0:
            time.sleep(0.001)
        semaphore.release_sync(others)
        assert len([next(results) for _ in range(10)]) == 10
        others = None
        while others is None:
            others = semaphore.try_acquire_sync(1)
    semaphore.release_sync(others)
    assert semaphore.stats_sync().acquired_slots == 0
    others = semaphore.acquire_sync(2)
    with bounded_map_sync(same, itertools.count(), semaphore=semaphore):
        while semaphore.stats_sync().waiting == 0:
            time.sleep(0.001)
    assert semaphore.stats_sync().waiting == 0
    semaphore.release_sync(others)


def test_a_source_that_blocks_does_not_hold_back_a_group_that_waits() -> None:
    work = Work()

    def source():
        yield "a1"
        yield "a2"
        work.until(lambda: "a2" in work.started)  # blocks until the second has begun
        yield "b"

    work.let_go("a1", "a2", "b")
    got = list(bounded_map_sync(work, source(), limit=2, group_key=lambda item: item[0]))
    assert sorted(got) == ["a1", "a2", "b"]


def test_a_coroutine_function_needs_a_loop() -> None:
    async def coroutine(item):
        return item

    with pytest.raises(TypeError, match="coroutine function"):
        bounded_map_sync(coroutine, [1], limit=1)
    with pytest.raises(TypeError, match="returned a coroutine"):
        run_bounded_sync(lambda item: coroutine(item), [1], limit=1)  # noqa: PLW0108


async def test_a_blocking_loop_over_results_is_refused_in_an_event_loop() -> None:
    with pytest.raises(WouldBlockLoop):
        list(bounded_map_sync(same, [1], limit=1))


def test_ctrl_c_ends_a_run_in_order(tmp_path) -> None:
    script = """
        import os, signal, sys, time
        from slotwise.pipeline import run_bounded_sync
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a background has it ignored
        def work(item):
            os.write(1, b"working\\n")
            time.sleep(0.05)
        try:
            run_bounded_sync(work, iter(int, 1), limit=2)
        except KeyboardInterrupt as stop:
            print("report", stop.report.done, stop.report.in_flight, flush=True)
            sys.exit(130)
    """
    process = _fresh_processes.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "working\n"
    os.kill(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    last = said.splitlines()[-1].split()
    assert last[0] == "report"
    assert last[2] == "0"


@pytest.mark.parametrize("in_loop", [False, True])
def test_the_last_items_raise_too_after_the_source_has_ended(in_loop: bool) -> None:
    ended = threading.Event()

    def source():
        yield from range(3)
        ended.set()

    def fail(item: int) -> None:
        assert ended.wait(30)
        if item == 1:
            raise ValueError(item)

    def work() -> None:
        if in_loop:
            asyncio.run(run_bounded(fail, source(), 5))
        else:
            run_bounded_sync(fail, source(), 5)

    with pytest.raises(ValueError, match="1") as raised:
        work()
    assert raised.value.report.failed == 1


def test_a_run_may_be_ended_by_the_collector_in_a_thread_that_holds_its_lock() -> None:
    run = bounded_map_sync(same, range(3), 1)

    def collect() -> None:
        with run._workers._lock:
            run.__del__()

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()


async def test_closing_with_results_ready_leaves_the_loop_free() -> None:
    go = threading.Event()

    def slow_later(item: int) -> int:
        if item > 1:
            assert go.wait(30)
        return item

    results = bounded_map(slow_later, range(4), 4)
    async with results:
        while results.report.queue_depth < 2 or results.report.in_flight < 2:
            await asyncio.sleep(0)
        closing = asyncio.create_task(results.aclose())
        for _ in range(100):  # a loop that is not free would not come back from the first
            await asyncio.sleep(0)
        assert not closing.done()
        go.set()
        await closing
    assert results.report.done == 4
