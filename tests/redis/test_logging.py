"""The fields of log records."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import pytest

from slotwise.redis import RedisConfig, RedisSemaphore, _outages


async def _wait_for(acquired: Any) -> None:
    await acquired.lost


async def test_debug_and_warnings_carry_the_fields_of_the_memory_driver(
    config: RedisConfig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "slotwise.redis")
    semaphore = RedisSemaphore(name="x", value=3, config=config)
    acquired = await semaphore.acquire()
    await semaphore.release(acquired)
    expiring = await RedisSemaphore(name="x", value=3, ttl=0.1, config=config).acquire()
    await asyncio.wait_for(_wait_for(expiring), 5)
    taken, given, _, warned = caplog.records
    assert [taken.levelname, given.levelname, warned.levelname] == ["DEBUG", "DEBUG", "WARNING"]
    for record, result in ((taken, acquired), (given, acquired), (warned, expiring)):
        fields = vars(record)
        assert fields["semaphore_name"] == "x"
        assert fields["acquisition_id"] == result.acquisition_id
        assert fields["slot_number"] == 1
        assert fields["max_slots"] == 3
        assert fields["acquire_time" if record is taken else "held_time"] >= 0


@pytest.mark.soak
def test_what_a_server_answered_before_an_outage_does_not_end_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A connection may have been opened just before, and be taken over just after."""
    caplog.set_level(logging.WARNING, "slotwise.redis")
    before = time.monotonic()
    _outages.begin("Redis at nowhere", ConnectionError("it broke"), broken=True)
    _outages.end("Redis at nowhere", before)
    assert len(caplog.records) == 1
    _outages.end("Redis at nowhere", time.monotonic())
    _outages.end("Redis at nowhere", time.monotonic())
    [_, back] = caplog.messages
    assert back.startswith("Redis at nowhere is back after ")


@pytest.mark.soak
def test_what_failed_before_an_outage_ended_does_not_begin_another(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "slotwise.redis")
    broke, before = ConnectionError("it broke"), time.monotonic()
    _outages.begin("Redis at nowhere", broke, broken=True)
    _outages.end("Redis at nowhere", time.monotonic())
    _outages.begin("Redis at nowhere", broke, broken=True, asked_at=before)
    assert len(caplog.records) == 2
    _outages.begin("Redis at nowhere", broke, broken=True, asked_at=time.monotonic())
    _outages.end("Redis at nowhere", time.monotonic())
    assert len(caplog.records) == 4
