"""anyio on asyncio: its cancellation, shielding and task groups. trio: what it is told."""

from __future__ import annotations

import anyio
import pytest
import trio

from slotwise import MemorySemaphore, Tier, Tiers
from slotwise.testing import settle


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


@pytest.mark.parametrize("make", LIMITS)
async def test_a_cancelled_task_group_gives_all_slots_back(make) -> None:
    limit = make()
    entered = []

    async def work(number: int) -> None:
        async with limit.cm():
            entered.append(number)
            await anyio.sleep_forever()

    async with anyio.create_task_group() as group:
        for number in range(3):
            group.start_soon(work, number)
        await settle()
        assert entered == [0]
        assert (held(limit), limit.stats_sync().waiting) == (1, 2)
        group.cancel_scope.cancel()
    assert (held(limit), limit.stats_sync().waiting) == (0, 0)
    assert entered == [0]


@pytest.mark.parametrize("make", LIMITS)
async def test_a_shielded_block_keeps_its_slot_until_its_end(make) -> None:
    limit = make()
    finished = []
    go_on = anyio.Event()

    async def work() -> None:
        with anyio.CancelScope(shield=True):
            async with limit.cm():
                await go_on.wait()
                finished.append(held(limit))

    async with anyio.create_task_group() as group:
        group.start_soon(work)
        await settle()
        group.cancel_scope.cancel()
        assert held(limit) == 1
        go_on.set()
    assert finished == [1]
    assert held(limit) == 0


@pytest.mark.parametrize("make", LIMITS)
def test_whoever_would_wait_under_trio_is_told_that_it_needs_asyncio(make) -> None:
    limit = make()

    async def main() -> None:
        with pytest.raises(RuntimeError, match=r"needs .* asyncio"):
            await limit.try_acquire()
        assert held(limit) == 0
        acquired = limit.try_acquire_sync()
        for wait in (limit.acquire, limit.__aenter__, limit.cm().__aenter__):
            with pytest.raises(RuntimeError, match=r"needs .* asyncio.*trio\.to_thread"):
                await wait()
        assert limit.stats_sync().waiting == 0
        assert limit.release_sync(acquired)
        # In a thread it waits as anywhere.
        acquired = await trio.to_thread.run_sync(limit.acquire_sync)
        assert limit.release_sync(acquired)

    trio.run(main)
    assert held(limit) == 0
