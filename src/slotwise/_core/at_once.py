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
