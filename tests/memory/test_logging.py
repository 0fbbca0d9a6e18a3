"""What is logged, with which fields, and that silence costs nothing."""

from __future__ import annotations

import asyncio
import logging
import sys
from types import FrameType
from typing import Any

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


@pytest.mark.parametrize("way", ["block", "acquire", "try_acquire", "wide", "timed"])
async def test_every_way_to_take_a_slot_is_told(caplog: pytest.LogCaptureFixture, way: str) -> None:
    caplog.set_level(logging.DEBUG, "slotwise.memory")
    semaphore = MemorySemaphore(name="ways", value=2, ttl=60 if way == "timed" else None)
    if way == "block":
        async with semaphore:
            pass
    elif way == "wide":
        async with semaphore.cm(2):
            pass
    else:
        acquired = await (semaphore.try_acquire() if way == "try_acquire" else semaphore.acquire())
        assert acquired is not None
        await semaphore.release(acquired)
    assert [record.message.split()[0] for record in caplog.records] == [
        "acquiring",
        "acquired",
        "released",
    ]


async def test_the_time_of_a_wait_is_told(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "slotwise.memory")
    semaphore = MemorySemaphore(value=1)
    held = await semaphore.acquire()
    waiting = asyncio.create_task(semaphore.acquire())
    await settle()
    clock.advance(3)
    await semaphore.release(held)
    await waiting
    assert vars(caplog.records[-1])["acquire_time"] == 3.0
    assert "private" in caplog.records[-1].message


def opcodes_of_a_block(semaphore: MemorySemaphore, how: str) -> int:
    """How many bytecodes a block takes, which is what it costs on a quiet machine."""
    count = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    async def block() -> None:
        async with semaphore if how == "block" else semaphore.cm():
            pass

    coroutine = block()
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        coroutine.send(None)
    except StopIteration:
        pass
    finally:
        sys.settrace(before)
    return count


@pytest.mark.soak
@pytest.mark.parametrize("how", ["block", "cm"])
@pytest.mark.parametrize("ttl", [None, 60])
async def test_a_block_at_info_costs_what_one_at_warning_does(
    caplog: pytest.LogCaptureFixture, how: str, ttl: float | None
) -> None:
    semaphore = MemorySemaphore(3, ttl=ttl)
    costs = {}
    for level in (logging.WARNING, logging.INFO, logging.DEBUG):
        caplog.set_level(level, "slotwise.memory")
        opcodes_of_a_block(semaphore, how)  # after which the logger knows its level again
        costs[level] = opcodes_of_a_block(semaphore, how)
    assert costs[logging.INFO] == costs[logging.WARNING] > 0
    assert costs[logging.DEBUG] > 3 * costs[logging.INFO], "else nothing was measured"


async def test_nothing_is_told_at_the_default_level(caplog: pytest.LogCaptureFixture) -> None:
    semaphore = MemorySemaphore(value=1)
    async with semaphore:
        pass
    async with semaphore.cm() as acquired:
        pass
    await semaphore.release(acquired)
    assert not caplog.records


async def test_listening_may_begin_and_end_while_blocks_are_open(
    caplog: pytest.LogCaptureFixture,
) -> None:
    semaphore = MemorySemaphore(value=3)
    async with semaphore, semaphore.cm():
        caplog.set_level(logging.DEBUG, "slotwise.memory")
        async with semaphore:
            caplog.set_level(logging.WARNING, "slotwise.memory")
    assert (await semaphore.stats()).acquired_slots == 0


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
