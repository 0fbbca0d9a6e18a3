"""Each effect, interpreter and exception of `slotwise.effects`, as the type checker sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any, assert_type

from slotwise.effects import (
    AcquireSemaphore,
    AcquireTimeout,
    Await,
    Cancel,
    Checkpoint,
    CompletePromise,
    CreatePromise,
    CreateSemaphore,
    DeadlockError,
    Effect,
    Exploration,
    FailPromise,
    Failure,
    ForeignSemaphoreError,
    ForeignTaskError,
    Gather,
    InvariantViolated,
    LeakedPermits,
    Now,
    Outcome,
    PermitLeakWarning,
    Program,
    Promise,
    Race,
    ReleaseSemaphore,
    Schedule,
    ScheduleMismatch,
    Semaphore,
    SemaphoreInfo,
    SemaphoreState,
    Sleep,
    Spawn,
    StepLimitExceeded,
    Task,
    TaskCancelledError,
    TransferPermit,
    Try,
    TryAcquire,
    UnhandledEffectError,
    UnretrievedTaskError,
    Wait,
    WithPermit,
    do,
    explore,
    replay,
    run,
    run_async,
)


@do
def held(semaphore: Semaphore, number: int) -> Generator[Any, Any, int]:
    yield AcquireSemaphore(semaphore, 2, timeout=1.5)
    yield ReleaseSemaphore(semaphore, 2)
    return number


@do
def everything(semaphore: Semaphore) -> Generator[Any, Any, list[int]]:
    assert_type(CreateSemaphore(2, "pool", owned=True), CreateSemaphore)
    assert_type(WithPermit(semaphore, held(semaphore, 1), n=2), WithPermit[int])
    task: Task[int] = yield Spawn(held(semaphore, 1), name="one")
    promise: Promise[int] = yield CreatePromise("answer")
    yield TransferPermit(semaphore, task, 1)
    taken: bool = yield TryAcquire(semaphore, 1)
    state: SemaphoreState = yield SemaphoreInfo(semaphore)
    assert_type(state.available, int)
    assert_type(state.holders, tuple[Task[Any], ...])
    assert_type(Wait(task), Wait[int])
    assert_type(Race(task, promise, held(semaphore, 2)), Race[int])
    outcome: Outcome[int] = yield Try(held(semaphore, 3))
    assert_type(outcome.value, int | None)
    assert_type(outcome.error, BaseException | None)
    assert_type(outcome.ok, bool)
    yield Checkpoint()
    yield Sleep(0.5)
    now: float = yield Now()
    yield CompletePromise(promise, 3)
    yield FailPromise(promise, ValueError(f"{taken} {now}"))
    yield Cancel(task)
    yield task.cancel()
    yield Await(asyncio.sleep(0))
    result: list[int] = yield Gather(task, promise, Wait(task), held(semaphore, 3))
    return result


class Log(Effect[None]):
    """An effect of a user."""

    def __init__(self, words: str) -> None:
        self.words = words


async def interpreters(program: Program[int]) -> None:
    assert_type(run(program, seed=1, max_steps=100, handlers={Log: print}), int)
    assert_type(await run_async(program), int)
    found = explore(lambda: program, preemptions=2)
    assert_type(found, Exploration)
    assert_type(found.ok, bool)
    assert_type(found.failure, Failure | None)
    if found.failure is not None:
        assert_type(found.failure.schedule, Schedule)
        assert_type(replay(lambda: program, found.failure.schedule), int)
    run(3)  # type: ignore[arg-type]


def errors(deadlock: DeadlockError, cancelled: TaskCancelledError) -> None:
    assert_type(deadlock.cycles, tuple[tuple[Task[Any], ...], ...])
    assert_type(deadlock.waiters, dict[Task[Any], object])
    assert_type(deadlock.leaked, tuple[LeakedPermits, ...])
    assert_type(deadlock.leaked[0].line, int)
    assert_type(cancelled.task, Task[Any])
    builtins: list[tuple[type[BaseException], type[BaseException]]] = [
        (AcquireTimeout, TimeoutError),
        (DeadlockError, RuntimeError),
        (StepLimitExceeded, RuntimeError),
        (ScheduleMismatch, RuntimeError),
        (UnhandledEffectError, RuntimeError),
        (ForeignSemaphoreError, RuntimeError),
        (ForeignTaskError, RuntimeError),
        (InvariantViolated, AssertionError),
        (PermitLeakWarning, RuntimeWarning),
        (UnretrievedTaskError, RuntimeWarning),
    ]
    for ours, builtin in builtins:
        assert issubclass(ours, builtin)
