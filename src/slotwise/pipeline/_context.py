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


_UNSET = object()


def is_same(one: Context, other: Context) -> bool:
    """Return whether two contexts have the very same values.

    Contexts compare equal when their values do, but an item may have set an equal value that is
    another object, and comparing would run ``__eq__`` of our users' classes.
    """
    return len(one) == len(other) and all(
        other.get(variable, _UNSET) is value for variable, value in one.items()
    )
