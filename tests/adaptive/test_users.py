"""What takes a limit tells an adaptive one how the work ended: decorators and pipelines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from slotwise import Adaptive, Errors, MemorySemaphore, limited, semaphore
from slotwise.pipeline import bounded_map, bounded_map_sync

RULES = Adaptive(10, 2, 20, algorithm=Errors())
DROPPED = 7


async def test_a_decorated_function_may_have_an_adaptive_limit() -> None:
    @limited("decorated", RULES, url="memory://")
    async def call(error: type[BaseException] | None) -> None:
        if error is not None:
            raise error

    limit = semaphore("decorated", RULES, "memory://")
    await call(None)
    with pytest.raises(LookupError):
        await call(LookupError)
    assert limit.value == 10
    with pytest.raises(TimeoutError):
        await call(TimeoutError)
    assert limit.value == DROPPED


def failing(error: type[BaseException] | None) -> Callable[[int], Any]:
    async def work(_: int) -> None:
        if error is not None:
            raise error

    return work


@pytest.mark.parametrize(("error", "value"), [(None, 10), (ValueError, 10), (TimeoutError, 7)])
async def test_the_work_of_a_pipeline_ends_as_it_does(
    error: type[BaseException] | None, value: int
) -> None:
    limit = MemorySemaphore(RULES)
    run = bounded_map(failing(error), [1], semaphore=limit, on_error="skip")
    assert [each async for each in run] == ([None] if error is None else [])
    assert limit.value == value


@pytest.mark.parametrize(("error", "value"), [(None, 10), (ValueError, 10), (TimeoutError, 7)])
def test_the_work_of_a_pipeline_of_threads_too(
    error: type[BaseException] | None, value: int
) -> None:
    limit = MemorySemaphore(RULES)

    def work(_: int) -> None:
        if error is not None:
            raise error

    run = bounded_map_sync(work, [1], semaphore=limit, on_error="skip")
    assert [*run] == ([None] if error is None else [])
    assert limit.value == value
