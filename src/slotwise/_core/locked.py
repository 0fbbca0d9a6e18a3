"""LockedAnswer: what `Limit.locked` returns, an awaitable that refuses to be used as a bool.

A plain coroutine is always true, so ``if semaphore.locked():`` without ``await`` would
look right and be wrong.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from types import TracebackType
from typing import Any


class LockedAnswer(Coroutine[Any, Any, bool]):
    """Whether a newcomer would have to wait, once it is awaited."""

    __slots__ = ("_asking",)

    def __init__(self, asking: Coroutine[Any, Any, bool]) -> None:
        self._asking = asking

    def _coroutine(self) -> Coroutine[Any, Any, bool]:
        return self._asking

    def __bool__(self) -> bool:
        self.close()  # or Python would warn that it was never awaited
        raise TypeError(
            "locked() has to be awaited here: 'if await semaphore.locked():';"
            " a plain thread calls semaphore.locked_sync()"
        )

    def __await__(self) -> Generator[Any, Any, bool]:
        return self._coroutine().__await__()

    def send(self, value: Any) -> Any:
        return self._coroutine().send(value)

    def throw(
        self,
        kind: Any,
        value: object = None,
        traceback: TracebackType | None = None,
    ) -> Any:
        if value is None and traceback is None:
            return self._coroutine().throw(kind)  # the form with three arguments is deprecated
        return self._coroutine().throw(kind, value, traceback)

    def close(self) -> None:
        self._coroutine().close()


class KnownAnswer(LockedAnswer):
    """An answer that was known when it was asked for."""

    __slots__ = ("_answer",)

    def __init__(self, answer: bool) -> None:
        self._answer = answer

    def _coroutine(self) -> Coroutine[Any, Any, bool]:
        return self._known()  # made when needed: Python warns about one that never runs

    async def _known(self) -> bool:
        return self._answer

    def __bool__(self) -> bool:
        return self._answer

    def __repr__(self) -> str:
        return f"<locked: {self._answer}>"
