"""The loss of one stage's slot is the loss of the whole staged acquisition, on every driver."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.tiers.conftest import options_of

import slotwise
from slotwise import Tier, Tiers


@pytest.fixture(params=["memory-staged", "process-staged", "redis-staged"])
def staged(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The url and name of staged tiers, on each driver."""
    return {"url": "memory://", "name": f"staged-{os.getpid()}"} | options_of(
        request, request.param
    )


def two_tiers(options: dict[str, Any], **more: Any) -> Tiers:
    return Tiers(Tier("user", 1, keyed=True), Tier("all", 1), **options, **more)


async def is_free(limits: Tiers) -> bool:
    stats = await limits.stats()
    return not any(tier.active for tier in stats.values())


@pytest.mark.parametrize("stage", ["all", "user:a"])
async def test_a_slot_kicked_in_one_stage_loses_and_frees_those_of_all(staged, look, stage):
    limits = two_tiers(staged)
    acquired = await limits.acquire(user="a")
    semaphore = slotwise.semaphore(f"{staged['name']}:{stage}", 1, staged["url"])
    [holder] = await semaphore.holders()
    assert not acquired.lost
    assert await semaphore.kick(holder.acquisition_id) is True
    async with asyncio.timeout(30):
        await acquired.lost
    assert acquired.lost.reason == "it was kicked"
    await look.until(lambda: is_free(limits))
    assert await limits.release(acquired) is False
    await limits.release(await limits.acquire(user="a", timeout=30))
    await limits.close()


async def test_a_thread_learns_that_a_wide_slot_was_lost(staged):
    limits = two_tiers(staged)

    def lose_it() -> bool:
        semaphore = slotwise.semaphore(f"{staged['name']}:all", 1, staged["url"])
        with limits.cm(user="a") as acquired:
            [holder] = semaphore.holders_sync()
            semaphore.kick_sync(holder.acquisition_id)
            lost = acquired.lost.wait(30)
        limits.release_sync(limits.acquire_sync(user="a", timeout=30))
        limits.close_sync()
        return lost

    assert await asyncio.to_thread(lose_it)


async def test_released_and_kicked_acquisitions_of_tiers_are_told_apart(staged, look):
    limits = two_tiers(staged)
    released = await limits.acquire(user="a")
    assert await limits.release(released) is True
    kicked = await limits.acquire(user="a", timeout=30)
    assert await limits.kick(kicked) is True
    async with asyncio.timeout(30):
        await kicked.lost
    assert not released.lost
    await look.until(lambda: is_free(limits))
    await limits.close()


def delete_file(directory: Path) -> None:
    [file] = [each for each in directory.glob("*.slots") if "all" in each.name]
    file.unlink()


async def test_the_wide_slot_goes_with_its_deleted_file(tmp_path: Path, look):
    limits = two_tiers({"url": f"process://{tmp_path}", "name": "d", "atomic": False})
    acquired = await limits.acquire(user="a")
    await asyncio.to_thread(delete_file, tmp_path)
    other = slotwise.semaphore("d:all", 1, f"process://{tmp_path}")
    await other.release(await other.acquire(timeout=30))
    async with asyncio.timeout(30):
        await acquired.lost
    await look.until(lambda: is_free(limits))
    await limits.close()


async def test_the_wide_slot_goes_with_its_deleted_key(server, look):
    options = {"url": server.url, "name": f"deleted-{os.getpid()}", "atomic": False}
    limits = two_tiers(options, heartbeat_max_interval=60, ping_interval=0.1)
    acquired = await limits.acquire(user="a")
    with redis.Redis(port=server.port) as client:
        assert client.delete(f"adv-sem:semaphore_main:{options['name']}:all") == 1
    async with asyncio.timeout(30):
        await acquired.lost
    await look.until(lambda: is_free(limits))
    await limits.close()


async def test_the_end_of_the_first_ttl_ends_all_stages(clock, settle):
    limits = two_tiers({"atomic": False, "ttl": 10})
    first = await limits.acquire(user="b")
    waiting = asyncio.create_task(limits.acquire(user="a"))
    await settle()
    clock.advance(4)
    await limits.release(first)
    acquired = await waiting
    clock.advance(6)  # "user" was granted 10 s ago, "all" 6 s ago
    assert acquired.lost
    assert await is_free(limits)
