"""Run a coroutine in a context of its own, without a task of its own."""

from __future__ import annotations

import types
from collections.abc import Awaitable, Callable, Generator
from contextvars import Context
from typing import Any


@types.coroutine
def in_context(
    context: Context, call: Callable[..., Awaitable[Any]], *args: Any
) -> Generator[Any, Any, Any]:
    """Call ``call`` and await its result, running every step in ``context``.

    The task is the one that awaits this; a task for each call would cost more than
    a short call itself.
    """
    run = context.run
    awaitable = run(call, *args)
    coroutine = awaitable if type(awaitable) is types.CoroutineType else _awaited(awaitable)
    try:
        asked = run(coroutine.send, None)
        while True:
            try:
                given = yield asked
            except GeneratorExit:
                run(coroutine.close)
                raise
            except BaseException as error:
                asked = run(coroutine.throw, error)
            else:
                asked = run(coroutine.send, given)
    except StopIteration as end:
        return end.value


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable
