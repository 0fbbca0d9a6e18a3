"""Threads and event loops of one process on one name."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from slotwise import AcquireTimeout, MemorySemaphore, SemaphoreStats


class Inside:
    """How many are in the critical section, counted independently."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.now = self.most = self.visits = 0

    def __enter__(self) -> None:
        with self._lock:
            self.now += 1
            self.visits += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *exc_info: object) -> None:
        with self._lock:
            self.now -= 1


@pytest.mark.soak
def test_eight_loops_and_eight_threads_share_three_slots() -> None:
    inside, failures = Inside(), []

    def thread(seed: int) -> None:
        dice = random.Random(seed)
        semaphore = MemorySemaphore(name="sixteen", value=3)
        for _ in range(60):
            try:
                if dice.random() < 0.5:
                    with semaphore, inside:
                        time.sleep(0)
                else:
                    with semaphore.cm(timeout=dice.choice([None, 30])), inside:
                        time.sleep(0)
            except AcquireTimeout:
                failures.append("timeout")

    async def task(dice: random.Random) -> None:
        semaphore = MemorySemaphore(name="sixteen", value=3)
        for _ in range(20):
            if dice.random() < 0.5:
                async with semaphore:
                    with inside:
                        await asyncio.sleep(0)
            else:
                async with semaphore.cm():
                    with inside:
                        await asyncio.sleep(0)

    async def loop(seed: int) -> None:
        dice = random.Random(seed)
        await asyncio.gather(*[task(dice) for _ in range(3)])

    threads = [threading.Thread(target=thread, args=[seed]) for seed in range(8)]
    threads += [threading.Thread(target=asyncio.run, args=[loop(seed)]) for seed in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(100)
        assert not one.is_alive()
    assert not failures
    assert inside.most <= 3
    assert inside.visits == 8 * 60 + 8 * 3 * 20
    assert MemorySemaphore(name="sixteen", value=3).stats_sync() == SemaphoreStats(0, 3)


def test_a_thread_is_woken_by_a_release_in_a_loop_and_the_other_way_round() -> None:
    semaphore = MemorySemaphore(value=1)
    order = []

    def thread() -> None:
        with semaphore:
            order.append("thread")

    async def main() -> None:
        async with semaphore:
            waiting = threading.Thread(target=thread)
            waiting.start()
            while not (await semaphore.stats()).waiting:
                await asyncio.sleep(0)
            behind = asyncio.create_task(task())
            while (await semaphore.stats()).waiting < 2:
                await asyncio.sleep(0)
        await behind
        waiting.join()

    async def task() -> None:
        async with semaphore:
            order.append("task")

    asyncio.run(main())
    assert order == ["thread", "task"]


async def test_two_tasks_cannot_share_a_cm() -> None:
    semaphore = MemorySemaphore(value=2)
    cm = semaphore.cm()
    entered = asyncio.Event()

    async def enter() -> None:
        async with cm:
            entered.set()
            await asyncio.Event().wait()

    first = asyncio.create_task(enter())
    await entered.wait()
    with pytest.raises(RuntimeError, match="entered before"):
        await enter()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await semaphore.stats() == SemaphoreStats(0, 2)


async def test_leaving_a_block_that_was_not_entered_is_an_error() -> None:
    semaphore = MemorySemaphore(name="not entered", value=1)
    with pytest.raises(RuntimeError, match="not in a 'with' block of 'not entered'"):
        await semaphore.__aexit__(None, None, None)
    assert await semaphore.stats() == SemaphoreStats(0, 1)


def test_release_sync_and_other_looks_work_inside_a_running_loop() -> None:
    async def main() -> None:
        semaphore = MemorySemaphore(value=1)
        acquired = semaphore.try_acquire_sync()
        assert acquired is not None
        assert semaphore.locked_sync()
        assert semaphore.stats_sync() == SemaphoreStats(1, 1)
        semaphore.resize_sync(2)
        assert semaphore.release_sync(acquired)
        semaphore.close_sync()

    asyncio.run(main())


def run_python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_interpreter_ends_quietly_with_holders_and_waiters_left() -> None:
    outcome = run_python(
        """
        import asyncio, threading
        from slotwise import MemorySemaphore

        left = MemorySemaphore(name="left", value=1, ttl=3600, cancel_task_after_ttl=True)

        async def main():
            await left.acquire()
            waiting = asyncio.create_task(left.acquire(timeout=1000))
            await asyncio.sleep(0)

        asyncio.run(main())
        threading.Thread(target=left.acquire_sync, daemon=True).start()
        with MemorySemaphore(value=1):
            print("over")
        """
    )
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (0, "over\n", "")


def test_importing_slotwise_imports_nothing_but_the_standard_library() -> None:
    outcome = run_python(
        """
        import sys
        before = set(sys.modules)
        import slotwise
        new = {name.partition(".")[0] for name in set(sys.modules) - before}
        print(sorted(new - sys.stdlib_module_names - {"slotwise"}))
        """
    )
    assert (outcome.stdout, outcome.stderr) == ("[]\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork()")
def test_a_forked_child_can_go_on_and_its_ids_are_its_own() -> None:
    outcome = run_python(
        """
        import os, warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # of fork() beside threads
        from slotwise import MemorySemaphore

        semaphore = MemorySemaphore(value=1, ttl=0.05)
        first = semaphore.acquire_sync()
        child = os.fork()
        second = semaphore.acquire_sync(timeout=30)  # the ttl ends in both
        assert second.acquisition_id != first.acquisition_id
        if not child:
            foreign = semaphore.release_sync(first.acquisition_id)
            os._exit(foreign or not semaphore.release_sync(second))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
    )
    assert (outcome.returncode, outcome.stdout) == (0, "0\n")
