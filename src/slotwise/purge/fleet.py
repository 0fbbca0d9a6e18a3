"""FleetSlots: the deletion limit that all machines share, for the purger's threads.

A worker takes one slot for the deletions of a batch, not for each of them: a round
trip to the server per file would cost more than the deletion.
"""

from __future__ import annotations

import asyncio

from slotwise.errors import SlotwiseError
from slotwise.pipeline.on_loop import LoopCalls
from slotwise.semaphore import Semaphore
from slotwise.values import AcquisitionResult


class FleetSlots:
    """Blocking waits for a shared semaphore that can be broken off."""

    def __init__(self, semaphore: Semaphore) -> None:
        self._semaphore = semaphore
        self._waits = LoopCalls(None, "slotwise-purge-fleet")
        self._stopped = False
        self.error: BaseException | None = None

    def acquire(self) -> AcquisitionResult | None:
        """A slot; None if the purge was stopped or the server can't be reached."""
        try:
            acquired: AcquisitionResult = self._waits.run(self._semaphore.acquire())
        except asyncio.CancelledError:
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
        """Break off all waits; nothing is granted any more."""
        self._stopped = True
        self._waits.stop()

    def close(self) -> None:
        self.stop()
        self._waits.close()


def semaphore_of(fleet: str | Semaphore, name: str | None, value: int) -> Semaphore:
    """The semaphore itself, or the one in Redis that a URL and a name mean."""
    if isinstance(fleet, Semaphore):
        return fleet
    from slotwise.redis import RedisConfig, RedisSemaphore  # only who asks for it needs redis

    return RedisSemaphore(name=name, value=value, config=RedisConfig(url=fleet))
