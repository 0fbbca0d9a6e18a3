"""What is logged, with which fields, and that silence costs nothing."""

from __future__ import annotations

import asyncio
import logging

import pytest

from slotwise import MemorySemaphore
from slotwise.testing import FakeClock, settle


def fields(record: logging.LogRecord) -> dict[str, object]:
    names = (
        "semaphore_name",
        "acquisition_id",
        "acquire_time",
        "held_time",
        "slot_number",
        "max_slots",
    )
    return {name: vars(record)[name] for name in names if name in vars(record)}


async def test_an_acquisition_is_told_on_the_way_in_and_when_it_begins_and_ends(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "slotwise.memory")
    semaphore = MemorySemaphore(name="told", value=3)
    async with semaphore.cm() as acquired:
        clock.advance(2)
    asking, got, gave = caplog.records
    assert [record.levelname for record in caplog.records] == ["DEBUG", "DEBUG", "DEBUG"]
    identity = {"semaphore_name": "told", "acquisition_id": acquired.acquisition_id}
    assert fields(asking) == identity
    assert fields(got) == {**identity, "acquire_time": 0.0, "slot_number": 1, "max_slots": 3}
    assert fields(gave) == {**identity, "held_time": 2.0, "slot_number": 1, "max_slots": 3}


async def test_blocks_of_several_tasks_stay_apart_when_listening_begins_between_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    semaphore = MemorySemaphore(value=2)
    leave = [asyncio.Event(), asyncio.Event()]

    async def stay(number: int) -> None:
        async with semaphore:
            await leave[number].wait()

    quiet = asyncio.create_task(stay(0))
    await settle()
    caplog.set_level(logging.DEBUG, "slotwise.memory")
    told = asyncio.create_task(stay(1))
    await settle()
    for event in leave:
        event.set()
        await settle()
    await asyncio.gather(quiet, told)
    assert (await semaphore.stats()).acquired_slots == 0


@pytest.mark.parametrize(
    "nonsense", ["", "nonsense", "m-1", "{prefix}0", "{prefix}01", "{prefix}9999999999999999999999"]
)
async def test_only_ids_that_were_never_issued_are_warned_about(
    caplog: pytest.LogCaptureFixture, nonsense: str
) -> None:
    semaphore = MemorySemaphore(name="warned", value=1)
    acquired = await semaphore.acquire()
    await semaphore.release(acquired)
    await semaphore.release(acquired)
    assert not caplog.records
    prefix = acquired.acquisition_id.rpartition("-")[0] + "-"
    assert await semaphore.release(nonsense.format(prefix=prefix)) is False
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "never issued" in record.message
    assert vars(record)["semaphore_name"] == "warned"
