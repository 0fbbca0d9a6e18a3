"""What every limit does when too many wait: whoever fits is served, and others are refused."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from typing import Any

import pytest

from slotwise import Limit, LimitFull, SlotwiseError, Tier, Tiers
from tests.contract.conftest import Speak, Url

Make = Callable[..., Limit]


async def test_a_newcomer_beyond_max_waiting_is_refused_and_takes_nothing(
    make_limit: Make, speak: Speak
) -> None:
    limit = make_limit(1, max_waiting=2)
    held = await speak.acquire(limit)
    waiting = [asyncio.create_task(speak.acquire(limit)) for _ in range(2)]
    await speak.waiting(limit, 2)
    with pytest.raises(LimitFull, match=r"no slot of .*, and too many are waiting: ") as refused:
        await speak.acquire(limit, timeout=30)
    assert refused.value.waiting == 2
    assert isinstance(refused.value, SlotwiseError)
    assert isinstance(refused.value, RuntimeError)
    assert await speak.try_acquire(limit) is None  # as ever
    with pytest.raises(TimeoutError):
        await speak.acquire(limit, timeout=0)
    await speak.release(limit, held)
    for _ in range(2):
        [first], left = await asyncio.wait(waiting, return_when="FIRST_COMPLETED", timeout=30)
        waiting = [*left]
        await speak.release(limit, first.result())
    assert (await speak.stats(limit)).acquired_slots == 0


async def test_whoever_fits_is_never_refused(make_limit: Make, speak: Speak) -> None:
    limit = make_limit(2, max_waiting=0)
    held = [await speak.acquire(limit) for _ in range(2)]
    with pytest.raises(LimitFull):
        await speak.acquire(limit)
    await speak.release(limit, held[0])
    again = await speak.acquire(limit)
    async with asyncio.timeout(30):
        for each in (held[1], again):
            await speak.release(limit, each)
        async with limit, limit.cm():
            with pytest.raises(LimitFull):
                async with limit:
                    raise AssertionError
            with pytest.raises(LimitFull):
                async with limit.cm():
                    raise AssertionError
    assert (await speak.stats(limit)).acquired_slots == 0


async def test_blocks_that_wait_count_too(make_limit: Make, speak: Speak) -> None:
    limit, patient = make_limit(1, max_waiting=2), make_limit(1)

    async def block() -> None:
        async with patient:
            pass

    held = await speak.acquire(limit)
    blocks = [asyncio.create_task(block()) for _ in range(2)]
    await speak.waiting(limit, 2)
    with pytest.raises(LimitFull):
        await speak.acquire(limit)
    blocks[0].cancel()
    await speak.waiting(limit, 1)
    waiting = asyncio.create_task(speak.acquire(limit))
    await speak.waiting(limit, 2)
    await speak.release(limit, held)
    await blocks[1]
    await speak.release(limit, await waiting)


@pytest.mark.parametrize("wrong", [-1, True, 1.5, "3", 2**60])
def test_a_wrong_max_waiting_is_an_error_at_once(make_limit: Make, wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="max_waiting must be"):
        make_limit(1, max_waiting=wrong)
    with pytest.raises((TypeError, ValueError), match="max_waiting must be"):
        Tier("t", 1, max_waiting=wrong)


def test_max_waiting_can_be_read_and_is_copied(make: Callable[..., Any]) -> None:
    assert make(1, name="unbounded").max_waiting is None
    assert copy.copy(make(1, max_waiting=3)).max_waiting == 3


# ------------------------------------------------------------------- tiers, rates


async def test_each_key_of_a_tier_has_its_own_max_waiting(url: Url, name: str) -> None:
    tenant, everybody = Tier("tenant", 1, keyed=True, max_waiting=1), Tier("all", 2)
    tiers = Tiers(tenant, everybody, name=name, url=url)
    held = [await tiers.acquire(tenant=each) for each in ("acme", "umbrella")]
    waiting = []
    for each in ("acme", "umbrella"):
        waiting.append(asyncio.create_task(tiers.acquire(tenant=each)))
        async with asyncio.timeout(30):
            while (await tiers.at(tenant=each).stats()).waiting != 1:
                await asyncio.sleep(0.001)
    with pytest.raises(LimitFull, match=r"tenant 'acme': 1 of 1 held, 1 other waiting") as full:
        await tiers.acquire(tenant="acme")
    assert full.value.waiting == 1
    third = asyncio.create_task(tiers.acquire(tenant="initech"))  # two wait, but not for its key
    async with asyncio.timeout(30):
        while (await tiers.stats())["all"].waiting != 3:
            await asyncio.sleep(0.001)
        for each in held:
            await tiers.release(each)
        for task in (*waiting, third):
            await tiers.release(await task)
