"""PathCalls: acquire and release one path on a backend, for Tiers, PathLimit and RateLimit.

The path is resolved already (`_path_arguments`), and the backend decides who gets what. What is
added here: the default timeout, the error of the tiers once they are closed, and the bound on
idle keys where the backend has none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from slotwise._core.adaptive import Outcome, check_outcome
from slotwise._core.arguments import Unset, check_label, check_timeout
from slotwise._core.limit import refuse_to_block_a_loop
from slotwise._core.path_backend import PathBackend
from slotwise._core.paths import Path
from slotwise._core.results import AcquisitionResult, acquisition_id_of
from slotwise.errors import SemaphoreClosed
from slotwise.memory._paths import MemoryPaths
from slotwise.tiers._path_arguments import PathArguments, Resolved, Slots


class PathCalls:
    """What is called for every path of one Tiers object."""

    __slots__ = ("_arguments", "_backend", "_closed_error", "_max_acquire_time", "_max_idle_keys")

    def __init__(
        self,
        backend: PathBackend,
        arguments: PathArguments,
        *,
        max_acquire_time: float | None,
        max_idle_keys: int,
        closed_error: Callable[..., SemaphoreClosed],
    ) -> None:
        self._backend = backend
        self._arguments = arguments
        self._max_acquire_time = max_acquire_time
        self._max_idle_keys = max_idle_keys
        self._closed_error = closed_error

    def timeout(self, timeout: float | Unset | None) -> float | None:
        return check_timeout(timeout, self._max_acquire_time)

    # ------------------------------------------------------------- acquiring

    async def acquire(
        self, path: Path, slots: Slots | Resolved, timeout: float | Unset | None, label: str | None
    ) -> AcquisitionResult:
        needs, seconds = self._arguments.needs(slots), self.timeout(timeout)
        label = check_label(label)
        try:
            return await self._backend.acquire(path, timeout=seconds, label=label, needs=needs)
        except SemaphoreClosed as closed:
            self._reraise(closed)

    def acquire_sync(
        self, path: Path, slots: Slots | Resolved, timeout: float | Unset | None, label: str | None
    ) -> AcquisitionResult:
        refuse_to_block_a_loop("acquire_sync()")
        needs, seconds = self._arguments.needs(slots), self.timeout(timeout)
        label = check_label(label)
        try:
            return self._backend.acquire_sync(path, timeout=seconds, label=label, needs=needs)
        except SemaphoreClosed as closed:
            self._reraise(closed)

    async def try_acquire(
        self, path: Path, slots: Slots | Resolved, label: str | None
    ) -> AcquisitionResult | None:
        needs = self._arguments.needs(slots)
        try:
            return await self._backend.try_acquire(path, check_label(label), needs)
        except SemaphoreClosed as closed:
            self._reraise(closed)

    def try_acquire_sync(
        self, path: Path, slots: Slots | Resolved, label: str | None
    ) -> AcquisitionResult | None:
        needs = self._arguments.needs(slots)
        try:
            return self._backend.try_acquire_sync(path, check_label(label), needs)
        except SemaphoreClosed as closed:
            self._reraise(closed)

    def _reraise(self, closed: SemaphoreClosed) -> NoReturn:
        if type(closed) is not SemaphoreClosed or self._closed_error is SemaphoreClosed:
            raise closed
        raise self._closed_error(str(closed), reason=closed.reason) from closed

    # ------------------------------------------------------------- releasing

    async def release(
        self, acquisition_id: str | AcquisitionResult, outcome: Outcome | None
    ) -> bool:
        if outcome is not None:
            check_outcome(outcome)
        freed = await self._backend.release(acquisition_id_of(acquisition_id), outcome=outcome)
        self._bound_idle()
        return freed

    def release_sync(
        self, acquisition_id: str | AcquisitionResult, outcome: Outcome | None
    ) -> bool:
        if outcome is not None:
            check_outcome(outcome)
        freed = self._backend.release_sync(acquisition_id_of(acquisition_id), outcome=outcome)
        self._bound_idle()
        return freed

    async def release_on_exit(self, acquired: AcquisitionResult) -> None:
        """`release` for a block that is left; see `Semaphore._release_on_exit`."""
        await self._backend.release_on_exit(acquired.acquisition_id)
        self._bound_idle()

    def release_on_exit_sync(self, acquired: AcquisitionResult) -> None:
        self._backend.release_on_exit_sync(acquired.acquisition_id)
        self._bound_idle()

    def _bound_idle(self) -> None:
        """Where the backend does not do it by itself, forget keys beyond the bound."""
        if not isinstance(self._backend, MemoryPaths):
            for name in (*self._arguments.keyed, *self._arguments.key_of):
                self._backend.forget_idle_sync(name, float("inf"), self._max_idle_keys)
