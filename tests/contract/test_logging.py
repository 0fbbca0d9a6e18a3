"""At which levels every driver logs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from slotwise import Limit, Semaphore
from tests.contract.conftest import Speak

Make = Callable[..., Semaphore]


def told(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What was logged about limits; on a busy machine a slow server is told of besides."""
    return [record for record in caplog.records if hasattr(record, "semaphore_name")]


async def use_in_every_way(semaphore: Semaphore) -> None:
    async with semaphore:
        pass
    async with semaphore.cm(2) as acquired:
        pass
    await semaphore.release(acquired)  # again, which is no reason to complain
    tried = await semaphore.try_acquire()
    assert tried is not None
    await semaphore.release(tried)
    await asyncio.to_thread(use_in_a_thread, semaphore)


def use_in_a_thread(semaphore: Semaphore) -> None:
    with semaphore:
        pass
    with semaphore.cm():
        pass


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("ttl", [None, 60])
async def test_routine_makes_no_record_at_info(
    make: Make, caplog: pytest.LogCaptureFixture, private: bool, ttl: float | None
) -> None:
    caplog.set_level(logging.INFO, "slotwise")
    await use_in_every_way(make(2, ttl=ttl, **({"name": None} if private else {})))
    assert not told(caplog)


async def test_routine_is_told_at_debug(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "slotwise")
    semaphore = make(2)
    async with semaphore:
        pass
    assert {record.levelname for record in told(caplog)} == {"DEBUG"}
    words = [record.getMessage().split()[0] for record in told(caplog)]
    assert [word for word in words if word in ("acquired", "released")] == ["acquired", "released"]


async def test_the_end_of_a_ttl_is_a_warning(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "slotwise")
    semaphore = make(1, ttl=0.05)
    acquired = await semaphore.acquire()
    async with asyncio.timeout(30):
        await acquired.lost
        while not told(caplog):
            await asyncio.sleep(0.001)
    [record] = told(caplog)
    assert record.levelname == "WARNING"
    words = f" lost by {acquired.acquisition_id}: its ttl of 0.05 s ended"
    assert record.getMessage().endswith(words)
    assert acquired.lost.reason == "its ttl of 0.05 s ended"


async def test_a_kick_is_a_warning(
    make_limit: Callable[..., Limit], speak: Speak, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "slotwise")
    limit = make_limit(1)
    owner = getattr(limit, "tiers", limit)
    acquired = await speak.acquire(limit)
    assert await speak.kick(owner, acquired) is True
    async with asyncio.timeout(30):
        while not told(caplog):
            await asyncio.sleep(0.001)
    [record] = told(caplog)
    assert record.levelname == "WARNING"
    assert record.getMessage().endswith(f" lost by {acquired.acquisition_id}: it was kicked")
    assert vars(record)["semaphore_name"] == owner.name
    assert vars(record)["max_slots"] == (1 if owner is limit else 2), "that of the widest tier"


async def warned_once_of_nonsense(
    limit: Limit, speak: Speak, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "slotwise")
    acquired = await speak.acquire(limit)
    assert await speak.release(limit, acquired) is True
    assert await speak.release(limit, acquired) is False
    assert not told(caplog), "it has ended, and that is routine"
    assert await speak.release(limit, "nonsense") is False
    [record] = told(caplog)
    assert record.levelname == "WARNING"
    assert "never issued that id" in record.getMessage()
    assert vars(record)["acquisition_id"] == "nonsense"
    assert vars(record)["semaphore_name"] == getattr(limit, "tiers", limit).name


async def test_releasing_an_id_that_was_never_issued_is_a_warning(
    make_limit: Callable[..., Limit], speak: Speak, caplog: pytest.LogCaptureFixture
) -> None:
    await warned_once_of_nonsense(make_limit(1), speak, caplog)
