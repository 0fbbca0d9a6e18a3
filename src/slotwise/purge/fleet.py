"""FleetSlots: the deletion limit that all machines share, for the purger's threads.

A worker takes one slot for the deletions of a batch, not for each of them: a round
trip to the server per file would cost more than the deletion.
"""

from __future__ import annotations

import asyncio
import threading

from slotwise.errors import SlotwiseError
from slotwise.pipeline.on_loop import OnLoop, loop_in_a_thread
from slotwise.semaphore import Semaphore
from slotwise.values import AcquisitionResult


class FleetSlots:
    """Blocking waits for a shared semaphore that can be broken off."""

    def __init__(self, semaphore: Semaphore) -> None:
        self._semaphore = semaphore
        self._loop = loop_in_a_thread("slotwise-purge-fleet")
        self._lock = threading.Lock()
        self._waits: set[OnLoop] = set()
        self._stopped = False
        self.error: BaseException | None = None

    def acquire(self) -> AcquisitionResult | None:
        """A slot; None if the purge was stopped or the server can't be reached."""
        with self._lock:
            if self._stopped:
                return None
            wait = OnLoop(self._semaphore.acquire(), self._loop)
            self._waits.add(wait)
        try:
            acquired: AcquisitionResult = wait.result()
        except asyncio.CancelledError:
            return None
        except SlotwiseError as error:
            self.error = error
            return None
        finally:
            with self._lock:
                self._waits.discard(wait)
        if self._stopped:
            self.release(acquired)
            return None
        return acquired

    def release(self, acquired: AcquisitionResult) -> None:
        self._semaphore.release_sync(acquired)

    def stop(self) -> None:
        """Break off all waits; nothing is granted any more."""
        with self._lock:
            self._stopped = True
            waits = list(self._waits)
        for wait in waits:
            wait.cancel()

    def close(self) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)


def semaphore_of(fleet: str | Semaphore, name: str | None, value: int) -> Semaphore:
    """The semaphore itself, or the one in Redis that a URL and a name mean."""
    if isinstance(fleet, Semaphore):
        return fleet
    from slotwise.redis import RedisConfig, RedisSemaphore  # only who asks for it needs redis

    return RedisSemaphore(name=name, value=value, config=RedisConfig(url=fleet))
