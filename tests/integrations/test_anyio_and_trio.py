"""anyio on asyncio: its cancellation, shielding and task groups. trio: waiting in memory."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import anyio
import pytest
import trio
import trio.testing
from tests.integrations._servers import wait_until

from slotwise import (
    AcquireTimeout,
    MemorySemaphore,
    Semaphore,
    SemaphoreClosed,
    Tier,
    Tiers,
    limited,
    semaphore,
)


def held(limit) -> int:
    return limit.stats_sync().acquired_slots


LIMITS = [lambda: MemorySemaphore(1), lambda: Tiers(Tier("all", 1)).at()]


@pytest.mark.parametrize("make", LIMITS)
async def test_a_cancel_scope_ends_a_wait_and_takes_nothing(make) -> None:
    limit = make()
    async with limit.cm():
        with anyio.move_on_after(0) as scope:
            async with limit.cm():
                raise AssertionError("there was no slot")
        assert scope.cancelled_caught
        with pytest.raises(TimeoutError):
            with anyio.fail_after(0):
                await limit.acquire()
        assert limit.stats_sync().waiting == 0
    assert held(limit) == 0


# --------------------------------------------------------------------------- trio


async def settle_trio() -> None:
    """Wait until every task of trio is blocked."""
    await trio.testing.wait_all_tasks_blocked(0.005)


MEMORY_LIMITS = [
    *LIMITS,
    lambda: MemorySemaphore(1, name="under trio", ttl=60),
    lambda: MemorySemaphore(1, max_acquire_time=60),
]


@pytest.mark.parametrize("make", MEMORY_LIMITS)
@pytest.mark.parametrize("how", ["acquire", "cm", "block", "decorator"])
def test_tasks_of_trio_wait_in_memory_first_come_first_served(make, how) -> None:
    limit = make()
    order: list[int] = []

    async def hold(number: int) -> None:
        assert held(limit) == 1
        order.append(number)
        await trio.lowlevel.checkpoint()
        assert held(limit) == 1

    async def work(number: int) -> None:
        if how == "acquire":
            acquired = await limit.acquire()
            await hold(number)
            await limit.release(acquired)
        elif how == "cm":
            async with limit.cm():
                await hold(number)
        elif how == "block":
            async with limit:
                await hold(number)
        else:
            await limited(limit)(hold)(number)

    async def main() -> None:
        async with trio.open_nursery() as nursery, limit.cm():
            for number in range(10):
                nursery.start_soon(work, number)
                await settle_trio()
            assert limit.stats_sync().waiting == 10
            assert await limit.try_acquire() is None

    trio.run(main)
    assert order == list(range(10))
    assert (held(limit), limit.stats_sync().waiting) == (0, 0)


@pytest.mark.parametrize("make", MEMORY_LIMITS)
def test_a_wait_of_trio_that_is_cancelled_or_times_out_takes_nothing(make) -> None:
    limit = make()

    async def main() -> None:
        async with limit.cm():
            with trio.move_on_after(0.01) as scope:
                async with limit:
                    raise AssertionError("there was no slot")
            assert scope.cancelled_caught
            with pytest.raises(AcquireTimeout):
                await limit.acquire(timeout=0.01)
            with pytest.raises(AcquireTimeout):
                await limit.acquire(timeout=0)
            assert limit.stats_sync().waiting == 0
        # Granted, and cancelled before it has run: the next one gets it.
        async with trio.open_nursery() as nursery:
            acquired = await limit.acquire()
            leaving = trio.CancelScope()

            async def wait() -> None:
                with leaving:
                    await limit.acquire()

            nursery.start_soon(wait)
            await settle_trio()
            nursery.start_soon(use, limit)
            await settle_trio()
            assert limit.stats_sync().waiting == 2
            await limit.release(acquired)
            leaving.cancel()

    async def use(limit) -> None:
        async with limit.cm():
            assert held(limit) == 1

    trio.run(main)
    assert (held(limit), limit.stats_sync().waiting) == (0, 0)


def test_tasks_of_trio_and_asyncio_and_threads_wait_in_one_queue() -> None:
    limit = MemorySemaphore(1, name="one queue")
    order: list[str] = []

    async def enter(who: str) -> None:
        async with limit.cm():
            order.append(who)

    def enter_in_thread() -> None:
        with limit.cm():
            order.append("thread")

    waiters = [
        lambda: trio.run(enter, "trio"),
        lambda: asyncio.run(enter("asyncio")),
        enter_in_thread,
        lambda: trio.run(enter, "another trio"),
    ]
    threads = [threading.Thread(target=each) for each in waiters]
    with limit.cm():
        for number, thread in enumerate(threads, 1):
            thread.start()
            wait_until(lambda n=number: limit.stats_sync().waiting == n, "the queue")
    for thread in threads:
        thread.join(60)
    assert order == ["trio", "asyncio", "thread", "another trio"]
    assert held(limit) == 0


def test_closing_a_limit_tells_tasks_of_trio_and_so_does_a_loss() -> None:
    limit = MemorySemaphore(1)
    told = []

    async def wait() -> None:
        with pytest.raises(SemaphoreClosed):
            await limit.acquire()
        told.append("closed")

    async def watch(acquired) -> None:
        await acquired.lost
        told.append("lost")

    async def main() -> None:
        acquired = await limit.acquire()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, acquired)
            await settle_trio()
            assert await limit.kick(acquired)
            await settle_trio()
            assert told == ["lost"]
            await limit.acquire()
            nursery.start_soon(wait)
            await settle_trio()
            await limit.close()

    trio.run(main)
    assert told == ["lost", "closed"]


def test_limits_that_do_io_say_under_trio_that_they_need_asyncio(tmp_path, server) -> None:
    async def main(limit) -> None:
        # In a thread it waits as anywhere.
        acquired = await trio.to_thread.run_sync(limit.acquire_sync)
        calls = [
            *(limit.acquire, limit.__aenter__, limit.cm().__aenter__, limit.try_acquire),
            *(limit.stats, limit.estimate, partial(limit.pause, 60)),
            partial(limit.release, acquired),
        ]
        if isinstance(limit, Semaphore):
            calls += [limit.holders, limit.waiters, limit.locked, limit.reopen]
            calls += [partial(limit.resize, 2), partial(limit.kick, acquired)]
            calls += [partial(limit.close_everywhere, "trio")]
        for call in calls:
            with pytest.raises(RuntimeError, match=r"needs .* asyncio.*trio\.to_thread"):
                await call()
        stats = await trio.to_thread.run_sync(limit.stats_sync)
        assert (stats.acquired_slots, stats.max_slots, stats.paused_for) == (1, 1, 0)
        assert await trio.to_thread.run_sync(limit.release_sync, acquired)

    for url in (f"process://{tmp_path}", server.url):
        for limit in (
            semaphore("trio", 1, url=url),
            Tiers(Tier("all", 1), name="trio tiers", url=url).at(),
        ):
            trio.run(main, limit)
            assert (held(limit), limit.stats_sync().waiting) == (0, 0)


def test_a_limit_on_redis_that_trio_can_not_close_stays_open(server) -> None:
    for limit in (
        semaphore("closed by trio", 1, url=server.url),
        Tiers(Tier("all", 1), name="closed by trio", url=server.url),
    ):
        with pytest.raises(RuntimeError, match=r"needs .* asyncio.*trio\.to_thread"):
            trio.run(limit.close)
        with limit.cm():
            pass
