"""Coroutines that never suspend, and so need no event loop.

A coroutine costs more than a slot that is free, so the quick lane makes none: a plain method
does the work and returns DONE, and ``await`` finds nothing left to wait for. (CPython lets
a generator that has ended be awaited any number of times, and a coroutine once.)
"""

from __future__ import annotations

import types
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar, cast

T = TypeVar("T")


@types.coroutine
def _nothing() -> Generator[None, None, None]:
    return
    yield


def _ended() -> Coroutine[Any, Any, None]:
    ending = _nothing()
    for _ in cast("Generator[None, None, None]", ending):
        pass
    return cast("Coroutine[Any, Any, None]", ending)


DONE = _ended()


async def known(result: T) -> T:
    """Return what was known when it was called."""
    return result


def run_at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return or raise what a coroutine does that never suspends; no event loop is needed."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("it suspended")


async def call(sync: bool, target: object, verb: str, *args: Any, **options: Any) -> Any:
    """Call a verb of a limit, or its twin for threads, which does not suspend.

    So what is written once as a coroutine can be done by `run_at_once` in a thread.
    """
    if sync:
        return getattr(target, f"{verb}_sync")(*args, **options)
    return await getattr(target, verb)(*args, **options)
