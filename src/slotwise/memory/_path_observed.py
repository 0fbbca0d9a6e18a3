"""Acquisitions of memory tiers while somebody listens to events: reported, never quick.

`MemoryPaths.cm` then makes these instead of those in `_path_acquisition`.
"""

from __future__ import annotations

from slotwise._core import events
from slotwise._wait import clock
from slotwise.memory import _log
from slotwise.memory._base_acquisition import BaseAcquisition
from slotwise.memory._path_acquisition import (
    LargeMemoryPathAcquisition,
    MemoryPathAcquisition,
    TimedMemoryPathAcquisition,
)


class _Observed(MemoryPathAcquisition):
    __slots__ = ()

    def take(self) -> bool:
        return False

    def give(self) -> bool:
        given = super().give()
        if given:
            _log.ended(self, "released")
        return given

    def end(self) -> bool:
        return super().give()

    async def _wait(self) -> None:
        self._tell_requested()
        try:
            await super()._wait()
            self._tell_acquired()
        except BaseException as error:
            _log.refused(self, error)
            raise

    def _tell_requested(self) -> None:
        self.paths._tell_requested(self.acquisition_id, self.needs, clock.now(), self.path)

    def _tell_acquired(self) -> None:
        try:
            events.acquired(self.acquisition_id, clock.now())
        except BaseException:  # raised by a signal handler: the caller will never know the id
            self.give()
            raise

    # Not those of the quick lane.
    __aenter__ = BaseAcquisition.__aenter__
    __aexit__ = BaseAcquisition.__aexit__


class ObservedMemoryPathAcquisition(_Observed):
    """One slot of every tier."""

    __slots__ = ()


class ObservedTimedMemoryPathAcquisition(_Observed, TimedMemoryPathAcquisition):
    """One slot of every tier, with a ttl."""

    __slots__ = ()


class ObservedLargeMemoryPathAcquisition(_Observed, LargeMemoryPathAcquisition):
    """Several slots of at least one tier."""

    __slots__ = ()
