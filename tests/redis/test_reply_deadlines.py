"""Callers wait for replies as long as they have, and no longer."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from tests.redis._inside import shared_of
from tests.redis._server import BUSY

from slotwise._core.limit import EXIT_LIMIT
from slotwise.errors import BackendError
from slotwise.redis import RedisConfig, RedisSemaphore

pytestmark = pytest.mark.soak


@pytest.fixture
def semaphore(config: RedisConfig) -> RedisSemaphore:
    return RedisSemaphore(1, name="crowd", config=config)


async def wait(semaphore: RedisSemaphore, reply: asyncio.Future[Any]) -> Any:
    return await shared_of(semaphore).client().reply_within(EXIT_LIMIT, reply, None)


async def test_one_late_reply_of_a_server_that_answers_others_is_no_outage(
    semaphore: RedisSemaphore, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a crowd of 10,000: the last one waits behind the replies to all others."""
    never = asyncio.get_running_loop().create_future()
    late = asyncio.create_task(wait(semaphore, never))
    while not late.done():
        await semaphore.stats()
    with pytest.raises(BackendError, match="did not answer"):
        await late
    assert not caplog.records


@pytest.mark.parametrize("blocked", [0.45, 0.7])
async def test_a_call_right_before_the_loop_is_blocked_has_time_for_its_reply(
    semaphore: RedisSemaphore, blocked: float
) -> None:
    """It is sent when the loop runs again: when its time is nearly over, or later."""
    loop = asyncio.get_running_loop()
    reply = loop.create_future()

    async def block() -> None:
        time.sleep(blocked)  # noqa: ASYNC251
        loop.call_later(0.1, reply.set_result, "the reply")  # and then it is sent

    got, _ = await asyncio.gather(wait(semaphore, reply), block())
    assert got == "the reply"


async def test_a_server_that_does_not_answer_is_awaited_no_longer_because_of_that(
    semaphore: RedisSemaphore,
) -> None:
    started = time.monotonic()
    with pytest.raises(BackendError, match="did not answer"):
        await wait(semaphore, asyncio.get_running_loop().create_future())
    assert EXIT_LIMIT - 0.01 < time.monotonic() - started < EXIT_LIMIT + BUSY
