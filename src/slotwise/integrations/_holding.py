"""Holding: slots of a limit for one piece of work, or what happens if it is full.

Every adapter holds its slots through this. `_source` and `_source` decide which limit that is.
"""

from __future__ import annotations

from typing import Any, Final, Literal, get_args

from slotwise._core.arguments import UNSET, Unset
from slotwise._core.limit import AcquisitionContext, Limit
from slotwise._core.redaction import redacted_repr
from slotwise._core.results import AcquisitionResult
from slotwise._core.semaphore import Semaphore
from slotwise.errors import LimitFull

OnFull = Literal["wait", "raise", "skip", "replace"]

_CHOICES: Final = get_args(OnFull)


def check_on_full(given: object, choices: tuple[str, ...] = _CHOICES) -> None:
    if given not in choices:
        known = ", ".join(repr(each) for each in choices)
        raise ValueError(f"on_full must be one of {known}, not {redacted_repr(given)}")


def check_replaceable(limit: Limit | None) -> None:
    """Raise unless a limit has holders that can be replaced."""
    if limit is not None and not isinstance(limit, Semaphore):
        raise TypeError(f'on_full="replace" is for semaphores, not for {limit._title}')


class Holding:
    """A block that holds ``slots`` of a limit, valid for one ``async with`` or one ``with``.

    It is entered without a slot if ``limit`` is None, which means unlimited, and if the limit
    is full and ``on_full`` is "skip" or "requeue"; then ``skipped`` is True.

    Args:
        limit: what to take slots of; None is unlimited.
        slots: how many; of a rate, its cost.
        timeout: the longest wait, with ``on_full="wait"``.
        priority: the head start in the queue, in seconds.
        on_full: "wait" waits, "raise" raises LimitFull, "skip" and "requeue" enter without a slot,
            "replace" kicks the holder that has held for longest.
    """

    __slots__ = ("_acquired", "_context", "_on_full", "_slots", "limit", "skipped")

    def __init__(
        self,
        limit: Limit | None,
        slots: int = 1,
        *,
        timeout: float | Unset | None = UNSET,
        priority: float = 0,
        on_full: str = "wait",
    ) -> None:
        self.limit = limit
        self._slots = slots
        self._on_full = on_full
        self._acquired: AcquisitionResult | None = None
        self._context: AcquisitionContext | None = None
        self.skipped = False
        options: dict[str, Any] = {"priority": priority} if priority else {}
        if on_full == "replace":
            check_replaceable(limit)
            options["on_full"] = on_full
        # A call that doesn't wait for others is a try, which is allowed in an event loop too.
        if limit is not None and on_full in ("wait", "replace"):
            self._context = limit.cm(slots, timeout=timeout, **options)

    async def __aenter__(self) -> AcquisitionResult | None:
        if self._context is not None:
            return await self._context.__aenter__()
        if self.limit is not None:
            self._acquired = await self.limit.try_acquire(self._slots)
        return self._tried()

    async def __aexit__(self, *exc_info: Any) -> None:
        if self._context is not None:
            await self._context.__aexit__(*exc_info)
        elif self.limit is not None and self._acquired is not None:
            self._acquired._leave_with(exc_info[0])
            await self.limit._release_on_exit(self._acquired)

    def __enter__(self) -> AcquisitionResult | None:
        if self._context is not None:
            return self._context.__enter__()
        if self.limit is not None:
            self._acquired = self.limit.try_acquire_sync(self._slots)
        return self._tried()

    def __exit__(self, *exc_info: Any) -> None:
        if self._context is not None:
            self._context.__exit__(*exc_info)
        elif self.limit is not None and self._acquired is not None:
            self._acquired._leave_with(exc_info[0])
            self.limit._release_on_exit_sync(self._acquired)

    def _tried(self) -> AcquisitionResult | None:
        if self.limit is not None and self._acquired is None:
            if self._on_full == "raise":
                raise LimitFull(f"no slot of {self.limit._title} is free")
            self.skipped = True
        return self._acquired
