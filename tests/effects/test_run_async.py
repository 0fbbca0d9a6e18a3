"""run_async: the same programs on a real event loop."""

from __future__ import annotations

import asyncio

import pytest

from slotwise import MemorySemaphore
from slotwise.effects import (
    Await,
    Checkpoint,
    Gather,
    Now,
    Sleep,
    Spawn,
    TaskCancelledError,
    Try,
    Wait,
    do,
    run_async,
)


@do
def turns_of_the_loop(count):
    for _ in range(count):
        yield Checkpoint()


async def test_a_program_runs_on_the_callers_loop_and_answers_its_value():
    loop = asyncio.get_running_loop()

    async def awaited(value):
        await asyncio.sleep(0)
        assert asyncio.get_running_loop() is loop
        return value

    @do
    def child(value):
        return (yield Await(awaited(value)))

    @do
    def program():
        return (yield Gather(*[child(number) for number in range(5)]))

    assert await run_async(program()) == [0, 1, 2, 3, 4]


async def test_time_is_real_and_that_of_the_loop():
    loop = asyncio.get_running_loop()

    @do
    def program():
        start = yield Now()
        assert abs(start - loop.time()) < 1
        yield Gather(Sleep(0.02), Sleep(0.01))
        return (yield Now()) - start

    assert 0.02 <= await run_async(program()) < 2


async def test_errors_leave_it_and_await_raises_what_was_awaited():
    async def failing():
        await asyncio.sleep(0)
        raise KeyError("awaited")

    @do
    def program():
        with pytest.raises(KeyError):
            yield Await(failing())
        with pytest.raises(TypeError):
            yield Await(5)
        raise IndexError("root")

    with pytest.raises(IndexError, match="root"):
        await run_async(program())


async def test_futures_can_be_awaited_and_their_cancellation_is_seen():
    loop = asyncio.get_running_loop()
    done, cancelled = loop.create_future(), loop.create_future()
    done.set_result(5)
    loop.call_soon(cancelled.cancel)

    @do
    def program():
        value = yield Await(done)
        with pytest.raises(asyncio.CancelledError):
            yield Await(cancelled)
        return value

    assert await run_async(program()) == 5


async def test_cancelling_it_cancels_all_tasks_and_runs_their_finally_blocks(settle):
    log = []

    @do
    def child(name):
        try:
            yield Sleep(1000)
        except TaskCancelledError:
            yield Sleep(0.01)
            log.append(name)
            raise

    @do
    def program():
        yield Gather(child("a"), child("b"))

    running = asyncio.create_task(run_async(program()))
    await settle()
    running.cancel()
    await asyncio.sleep(0)
    running.cancel()  # waits for the end like the first
    with pytest.raises(asyncio.CancelledError):
        await running
    assert log == ["a", "b"]


async def test_cancelling_a_task_cancels_what_it_awaits_and_waits_for_its_end():
    log = []

    async def service():
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(0.01)
            log.append("service ended")

    @do
    def child():
        try:
            yield Await(service())
        finally:
            log.append("child ended")

    @do
    def program():
        task = yield Spawn(child())
        yield turns_of_the_loop(5)  # the service has begun
        yield task.cancel()
        yield task.cancel()
        outcome = yield Try(Wait(task))
        return type(outcome.error)

    assert await run_async(program()) is TaskCancelledError
    assert log == ["service ended", "child ended"]


async def test_a_slot_granted_in_the_moment_of_cancellation_is_not_lost():
    real = MemorySemaphore(value=1, name=None)
    first = await real.acquire()

    @do
    def child():
        slot = yield Await(real.acquire())
        try:
            yield Sleep(1000)
        finally:
            yield Await(real.release(slot))

    @do
    def program(turns):
        task = yield Spawn(child())
        yield turns_of_the_loop(5)  # it waits for the slot
        yield Await(real.release(first))
        for _ in range(turns):
            yield Checkpoint()
        yield task.cancel()
        yield Try(Wait(task))

    for turns in range(6):
        await run_async(program(turns))
        assert not await real.locked()
        first = await real.acquire()
    await real.release(first)


def test_a_loop_that_is_closed_around_it_leaves_no_mess(collect):
    loop = asyncio.new_event_loop()

    @do
    def program():
        try:
            yield Sleep(1000)
        finally:
            pass

    coroutine = run_async(program())

    async def start():
        task = loop.create_task(coroutine)
        await asyncio.sleep(0)
        return task

    task = loop.run_until_complete(start())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)
    loop.close()
    collect()
