"""One timer serves all callers that wait for replies, and each stops waiting in time."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.redis._inside import shared_of
from tests.redis._server import BUSY

from slotwise._core.limit import EXIT_LIMIT
from slotwise.errors import BackendError
from slotwise.redis import RedisConfig, RedisSemaphore
from slotwise.redis._reply_limits import ReplyDeadlines, _NoReply, reply_within

pytestmark = pytest.mark.soak


async def outcome(deadlines: ReplyDeadlines, reply: asyncio.Future, seconds: float) -> object:
    loop = asyncio.get_running_loop()
    started = loop.time()
    deadlines.add(reply, seconds)
    try:
        return await reply
    except _NoReply:
        return loop.time() - started
    finally:
        deadlines.remove(reply)


async def test_replies_stop_being_awaited_at_their_own_deadlines() -> None:
    loop = asyncio.get_running_loop()
    deadlines = ReplyDeadlines(loop)
    limits = [0.3, 0.1, 0.2, 0.1]
    waited = await asyncio.gather(
        *(outcome(deadlines, loop.create_future(), seconds) for seconds in limits)
    )
    assert all(took >= seconds - 0.01 for took, seconds in zip(waited, limits, strict=True))
    assert waited[1] < waited[0]


def count_timers(loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """One for each timer that is set from now on."""
    timers: list[object] = []
    call_at = loop.call_at
    monkeypatch.setattr(loop, "call_at", lambda *args, **_: timers.append(1) or call_at(*args))
    return timers


@pytest.mark.parametrize("count", [1000])
async def test_many_releases_set_few_timers(count: int, monkeypatch) -> None:
    loop = asyncio.get_running_loop()
    deadlines = ReplyDeadlines(loop)
    timers = count_timers(loop, monkeypatch)
    for _ in range(count):
        reply = loop.create_future()
        loop.call_soon(reply.set_result, None)
        await outcome(deadlines, reply, 60)
    assert len(timers) == 1


async def test_one_late_reply_of_a_server_that_answers_others_is_no_outage(
    config: RedisConfig, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a crowd of 10,000: the last one waits behind the replies to all others."""
    semaphore = RedisSemaphore(1, name="crowd", config=config)
    await semaphore.stats()
    client = shared_of(semaphore).client()
    never = asyncio.get_running_loop().create_future()
    late = asyncio.create_task(reply_within(EXIT_LIMIT, never, client, None))
    while not late.done():
        await semaphore.stats()
    with pytest.raises(BackendError, match="did not answer"):
        await late
    assert not caplog.records


@pytest.mark.parametrize("blocked", [0.45, 0.7])
async def test_a_call_right_before_the_loop_is_blocked_has_time_for_its_reply(
    blocked: float,
) -> None:
    """It is sent when the loop runs again: when its time is nearly over, or later."""
    loop = asyncio.get_running_loop()
    reply = loop.create_future()

    async def block() -> None:
        time.sleep(blocked)  # noqa: ASYNC251
        loop.call_later(0.1, reply.set_result, "the reply")  # and then it is sent

    got, _ = await asyncio.gather(outcome(ReplyDeadlines(loop), reply, EXIT_LIMIT), block())
    assert got == "the reply"


async def test_a_server_that_does_not_answer_is_awaited_no_longer_because_of_that() -> None:
    loop = asyncio.get_running_loop()
    deadlines = ReplyDeadlines(loop)
    took = await outcome(deadlines, loop.create_future(), 0.5)
    assert isinstance(took, float)
    assert 0.49 < took < 0.5 + BUSY


async def test_thousands_of_late_replies_are_looked_at_a_few_times(monkeypatch) -> None:
    loop = asyncio.get_running_loop()
    deadlines = ReplyDeadlines(loop)
    timers = count_timers(loop, monkeypatch)
    limits = [0.6 + n / 50_000 for n in range(5_000)]
    waited = await asyncio.gather(
        *(outcome(deadlines, loop.create_future(), seconds) for seconds in limits)
    )
    assert all(took >= seconds - 0.001 for took, seconds in zip(waited, limits, strict=True))
    assert len(timers) < 40  # two for each look
