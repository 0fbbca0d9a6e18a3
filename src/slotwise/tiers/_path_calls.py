"""PathCalls: acquire and release one path on a backend, for Tiers, PathLimit and RateLimit.

The path is resolved already (`_path_arguments`), and the backend decides who gets what. What is
added here: checks of the other arguments, and the default timeout.
"""

from __future__ import annotations

from collections.abc import Awaitable

from slotwise._core.adaptive import Outcome, check_outcome
from slotwise._core.arguments import Unset, check_label, check_timeout
from slotwise._core.path_backend import PathBackend
from slotwise._core.paths import Path
from slotwise._core.results import AcquisitionResult, acquisition_id_of
from slotwise._core.twins import refuse_to_block_a_loop
from slotwise.tiers._path_arguments import PathArguments, Resolved, Slots


class PathCalls:
    """What is called for every path of one Tiers object."""

    __slots__ = ("_arguments", "_backend", "_max_acquire_time")

    def __init__(
        self, backend: PathBackend, arguments: PathArguments, max_acquire_time: float | None
    ) -> None:
        self._backend = backend
        self._arguments = arguments
        self._max_acquire_time = max_acquire_time

    def timeout(self, timeout: float | Unset | None) -> float | None:
        return check_timeout(timeout, self._max_acquire_time)

    # ------------------------------------------------------------- acquiring

    def begin(
        self, path: Path, slots: Slots | Resolved, timeout: float | Unset | None, label: str | None
    ) -> Awaitable[AcquisitionResult]:
        """Acquire, for a caller that awaits it at once; see `PathBackend.begin`."""
        needs, seconds = self._arguments.needs(slots), self.timeout(timeout)
        return self._backend.begin(path, seconds, check_label(label), needs)

    def acquire_sync(
        self, path: Path, slots: Slots | Resolved, timeout: float | Unset | None, label: str | None
    ) -> AcquisitionResult:
        refuse_to_block_a_loop("acquire_sync()")
        needs, seconds = self._arguments.needs(slots), self.timeout(timeout)
        return self._backend.acquire_sync(path, seconds, check_label(label), needs)

    def try_acquire(
        self, path: Path, slots: Slots | Resolved, label: str | None
    ) -> Awaitable[AcquisitionResult | None]:
        return self._backend.try_acquire(path, check_label(label), self._arguments.needs(slots))

    def try_acquire_sync(
        self, path: Path, slots: Slots | Resolved, label: str | None
    ) -> AcquisitionResult | None:
        needs = self._arguments.needs(slots)
        return self._backend.try_acquire_sync(path, check_label(label), needs)

    # ------------------------------------------------------------- releasing

    def release(
        self, acquisition_id: str | AcquisitionResult, outcome: Outcome | None
    ) -> Awaitable[bool]:
        if outcome is not None:
            check_outcome(outcome)
        return self._backend.release(acquisition_id_of(acquisition_id), outcome=outcome)

    def release_sync(
        self, acquisition_id: str | AcquisitionResult, outcome: Outcome | None
    ) -> bool:
        if outcome is not None:
            check_outcome(outcome)
        return self._backend.release_sync(acquisition_id_of(acquisition_id), outcome=outcome)
