"""The slot that ``slotwise run`` and ``slotwise acquire`` hold: waited for in a thread.

The main thread is busy with signals and processes, so events of the slot arrive through a file
descriptor that it can poll. That needs no asyncio, which is slow to import.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from slotwise._cli.signals import readable
from slotwise._core import events
from slotwise._core.limit import TRY_LIMIT
from slotwise._core.results import AcquisitionResult
from slotwise._core.semaphore import Semaphore

# How long a server has for a call, in seconds, even if an earlier call used up the time.
_SECOND_CALL = 0.5
_CANCEL_LIMIT = 3.0  # seconds that a server has to confirm that nobody waits any more


class TimeLeft:
    """What is left of ``--wait``: whatever is looked up before the wait counts as well.

    It counts from the first time that it is asked for: imports before that are not part of the
    wait, and must not use up the time of a slow server. The times are rounded, because messages
    show them.
    """

    def __init__(self, wait: float | None) -> None:
        self._wait = wait
        self._started: float | None = None

    def for_a_look(self) -> float | None:
        """Return how long a look at the semaphore may take; None leaves it to the driver."""
        if self._wait is None:
            return None
        # A distant server has to be connected to first, even if nothing is waited for.
        return _rounded(max(max(self._wait, TRY_LIMIT) - self._elapsed(), _SECOND_CALL))

    def for_the_slot(self) -> float | None:
        """Return how long to wait for a slot; None is without a limit."""
        if self._wait is None:
            return None
        return _rounded(max(self._wait - self._elapsed(), 0.0))

    def _elapsed(self) -> float:
        now = time.monotonic()
        if self._started is None:
            self._started = now
        return now - self._started


def _rounded(seconds: float) -> float:
    return round(seconds, 1 if seconds >= 1 else 2)


class Slot:
    """Slots of a semaphore: requested by `start`, then acquired or failed, then perhaps lost."""

    def __init__(
        self,
        semaphore: Semaphore,
        slots: int,
        time_left: TimeLeft,
        label: str | None,
        *,
        replace: bool = False,
        on_requested: Callable[[str], object] | None = None,
    ) -> None:
        """``replace``: take the slots of the oldest holder if none are free.

        ``on_requested`` is called with the id, in another thread, before it can hold or wait.
        """
        self.semaphore = semaphore
        self._replace = replace
        self._on_requested = on_requested
        self._arguments = slots, time_left, label
        self._reading, self._writing = os.pipe()
        self._result: AcquisitionResult | None = None
        self._failure: BaseException | None = None
        self.is_decided = False  # whether it was acquired, or failed
        self.lost_reason: str | None = None

    def start(self) -> None:
        """Request the slots; don't wait."""
        threading.Thread(target=self._work, name="slotwise-slot", daemon=True).start()

    def fileno(self) -> int:
        """Return a descriptor that is readable when there is something for `poll`."""
        return self._reading

    def poll(self) -> None:
        """Update `is_decided` and `lost_reason`, when there is something to read."""
        written = os.read(self._reading, 10)
        self.is_decided = True
        if b"l" in written:
            assert self._result is not None
            self.lost_reason = self._result.lost.reason

    def result(self) -> AcquisitionResult:
        """Return the acquisition, or raise why there is none; once it is decided."""
        if self._failure is not None:
            raise self._failure
        assert self._result is not None
        return self._result

    def cancel(self) -> None:
        """Leave the queue; release what was granted at the same moment."""
        self.semaphore.close_sync()
        if not self.is_decided and not readable(self._reading, timeout=_CANCEL_LIMIT):
            return  # the server is stuck: it will notice that this process has ended
        if self._result is not None:
            self.release()

    def release(self) -> None:
        self.semaphore.release_sync(self.result())

    def _work(self) -> None:
        slots, time_left, label = self._arguments
        timeout = time_left.for_the_slot()
        if self._on_requested is not None:
            events.add_hook(self._on_event)
        try:
            if self._replace:
                self._result = self.semaphore.acquire_sync(
                    slots, timeout=timeout, label=label, on_full="replace"
                )
            elif timeout == 0:
                answer = time_left.for_a_look() or TRY_LIMIT
                self._result = self.semaphore._acquire_at_once_sync(slots, label, answer)
            else:
                self._result = self.semaphore.acquire_sync(slots, timeout=timeout, label=label)
        except BaseException as error:
            self._failure = error
        if self._on_requested is not None:
            events.remove_hook(self._on_event)
        os.write(self._writing, b"d")
        if self._result is not None and self._result.lost.wait():
            os.write(self._writing, b"l")

    def _on_event(self, event: events.Event) -> None:
        if event.kind == "requested" and event.acquisition_id and self._on_requested is not None:
            self._on_requested(event.acquisition_id)
