"""Labels: what a caller says about an acquisition, for people who ask who holds it."""

from __future__ import annotations

from typing import Protocol, cast

from slotwise._core.arguments import Unset, check_text
from slotwise._core.results import AcquisitionResult
from slotwise._core.semaphore import HeldWhileInside, Semaphore, refuse_to_block_a_loop


class TakesLabels(Protocol):
    """A semaphore whose acquisitions can have labels."""

    async def acquire(
        self, slots: int, *, timeout: float | Unset | None, label: str | None
    ) -> AcquisitionResult: ...

    def acquire_sync(
        self, slots: int, *, timeout: float | Unset | None, label: str | None
    ) -> AcquisitionResult: ...


class Labelled(HeldWhileInside):
    """`cm()` of such a semaphore."""

    __slots__ = ("_label", "_limit")

    def __init__(
        self, semaphore: TakesLabels, slots: int, timeout: float | Unset | None, label: str | None
    ) -> None:
        super().__init__(cast("Semaphore", semaphore), slots, timeout)
        self._limit = semaphore
        self._label = label

    async def __aenter__(self) -> AcquisitionResult:
        self._enter()
        acquired = await self._limit.acquire(self._slots, timeout=self._timeout, label=self._label)
        self._acquired = acquired
        return acquired

    def __enter__(self) -> AcquisitionResult:
        refuse_to_block_a_loop("'with'")
        self._enter()
        acquired = self._limit.acquire_sync(self._slots, timeout=self._timeout, label=self._label)
        self._acquired = acquired
        return acquired


def check_label(label: object) -> str | None:
    if label is not None and not isinstance(label, str):
        raise TypeError(f"label must be a str or None, not {label!r}")
    return None if label is None else check_text("label", label)
