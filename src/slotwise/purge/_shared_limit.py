"""The deletion limit that several machines share, for the purger's threads.

A worker takes one slot for all deletions of a batch: one round trip to the server
per file would cost more than the deletion itself.
"""

from __future__ import annotations

import asyncio
import shlex

from slotwise._bounded.loop_thread import LoopThread
from slotwise._core.results import AcquisitionResult
from slotwise._core.semaphore import Semaphore
from slotwise._urls import semaphore as open_semaphore
from slotwise.errors import SlotwiseError, ValueConflict
from slotwise.purge._options import PurgeOptions


class SharedLimit:
    """Blocking waits for a semaphore, which `stop` interrupts."""

    def __init__(self, semaphore: Semaphore) -> None:
        self._semaphore = semaphore
        self._waits = LoopThread("slotwise-purge-limit")
        self._stopped = False
        self.error: BaseException | None = None

    @classmethod
    def of(cls, options: PurgeOptions) -> SharedLimit:
        """Open the limit that the options name by ``semaphore``, or by ``url`` and ``name``."""
        if options.semaphore is not None:
            return cls(options.semaphore)
        return cls(open_semaphore(options.name, options.max_concurrency_deletion, options.url))

    def acquire(self) -> AcquisitionResult | None:
        """Return a slot; None if the purge was stopped or the server is unreachable."""
        try:
            acquired: AcquisitionResult = self._waits.run(self._semaphore.acquire())
        except asyncio.CancelledError:
            return None
        except ValueConflict as error:
            limit = self._semaphore
            remedy = shlex.join(["slotwise", "resize", str(limit.name), str(limit.value)])
            self.error = ValueConflict(
                f"{limit.name!r} is in use with {error.value} slots: {remedy}", value=error.value
            )
            return None
        except SlotwiseError as error:
            self.error = error
            return None
        if self._stopped:
            self.release(acquired)
            return None
        return acquired

    def release(self, acquired: AcquisitionResult) -> None:
        self._semaphore.release_sync(acquired)

    def stop(self) -> None:
        """Interrupt all waits; nothing is granted afterwards."""
        self._stopped = True
        self._waits.stop()

    def close(self) -> None:
        self.stop()
        self._waits.close()
