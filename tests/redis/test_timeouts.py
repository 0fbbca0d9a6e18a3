"""Timeouts, and cancellations while one is cleaned up after."""

from __future__ import annotations

import asyncio
import socket

import pytest
from tests.redis._inside import shared_of

from slotwise import AcquireTimeout, BackendError, Tier, Tiers
from slotwise.redis import RedisConfig, RedisSemaphore


async def test_a_cancel_during_the_clean_up_of_a_timeout_is_not_swallowed(
    config: RedisConfig,
) -> None:
    semaphore = RedisSemaphore(value=1, config=config)
    held = await semaphore.acquire()

    async def insist() -> None:
        while True:
            try:
                await semaphore.acquire(timeout=0.05)
            except AcquireTimeout:
                pass

    waiting = shared_of(semaphore).waiters
    for _ in range(5):
        task = asyncio.create_task(insist())
        while not waiting:
            await asyncio.sleep(0)
        while waiting:  # then it cleans up
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=5)
        assert done
        assert task.cancelled()
    await semaphore.release(held)


async def test_a_timeout_before_the_first_connection_is_open_is_a_timeout() -> None:
    """The server can be reached, and is slow to say hello."""
    with socket.create_server(("127.0.0.1", 0)) as slow:
        config = RedisConfig(f"redis://127.0.0.1:{slow.getsockname()[1]}")
        limits = Tiers(Tier("all", 1), url=config)
        with pytest.raises(AcquireTimeout, match="did not answer") as caught:
            await limits.acquire(timeout=0.05)
    assert isinstance(caught.value, BackendError)  # nobody knows: caught as either
