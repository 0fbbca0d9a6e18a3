"""The slot that ``slotwise run`` and ``slotwise acquire`` hold: waited for in a thread.

The main thread has signals and processes to see to, so it polls: what a slot has to tell can
be waited for like a file. Nothing of asyncio is needed for that, which takes long to import.
"""

from __future__ import annotations

import os
import select
import threading

from slotwise._core.limit import TRY_LIMIT
from slotwise._core.results import AcquisitionResult
from slotwise._core.semaphore import Semaphore

_CANCEL_LIMIT = 3.0  # seconds that a server has to confirm that nobody waits any more


class Slot:
    """Slots of a semaphore: requested by `start`, then acquired or failed, then perhaps lost."""

    def __init__(
        self, semaphore: Semaphore, slots: int, timeout: float | None, label: str | None
    ) -> None:
        self.semaphore = semaphore
        self._arguments = slots, timeout, label
        self._reading, self._writing = os.pipe()
        self._result: AcquisitionResult | None = None
        self._failure: BaseException | None = None
        self.is_decided = False  # whether it was acquired, or failed
        self.lost_reason: str | None = None

    def start(self) -> None:
        """Request the slots; don't wait."""
        threading.Thread(target=self._work, name="slotwise-slot", daemon=True).start()

    def fileno(self) -> int:
        """Return what can be read when there is news for `poll`."""
        return self._reading

    def poll(self) -> None:
        """Update `is_decided` and `lost_reason`, when there is something to read."""
        news = os.read(self._reading, 10)
        self.is_decided = True
        if b"l" in news:
            assert self._result is not None
            self.lost_reason = self._result.lost.reason

    def result(self) -> AcquisitionResult:
        """Return the acquisition, or raise why there is none; once it is decided."""
        if self._failure is not None:
            raise self._failure
        assert self._result is not None
        return self._result

    def cancel(self) -> None:
        """Leave the queue; give back what was granted at the same moment."""
        self.semaphore.close_sync()
        if not self.is_decided and not select.select([self._reading], [], [], _CANCEL_LIMIT)[0]:
            return  # a stuck server: it notices that this process has ended
        if self._result is not None:
            self.release()

    def release(self) -> None:
        self.semaphore.release_sync(self.result())

    def _work(self) -> None:
        slots, timeout, label = self._arguments
        try:
            if timeout == 0:  # a distant server has to be connected to first
                self._result = self.semaphore._acquire_at_once_sync(slots, label, TRY_LIMIT)
            else:
                self._result = self.semaphore.acquire_sync(slots, timeout=timeout, label=label)
        except BaseException as error:
            self._failure = error
        os.write(self._writing, b"d")
        if self._result is not None and self._result.lost.wait():
            os.write(self._writing, b"l")
