"""How long threads have waited for a processor, by the kernel's own account.

It counts a thread that could run while others ran: not one that sleeps, or waits for a lock or a
reply. So it tells a busy machine from a mechanism that is late by itself.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable

TICK = 0.05

Waits = tuple[float, float]  # of the main thread, and of heartbeat threads


class ProcessorWaits:
    """Of one process. Only for this one it is known which thread sends heartbeats."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._of_heartbeats: dict[int, float] = {}  # by thread, also of those that have ended

    def so_far(self) -> Waits | None:
        """Return for how many seconds they have waited; None where the kernel doesn't tell."""
        main = self._of_thread(self._pid)
        if main is None:
            return None
        if self._pid == os.getpid():
            for thread in threading.enumerate():
                if thread.name == "slotwise-heartbeat" and thread.native_id is not None:
                    waited = self._of_thread(thread.native_id)
                    if waited is not None:
                        self._of_heartbeats[thread.native_id] = waited
        return main, sum(self._of_heartbeats.values())

    def _of_thread(self, thread: int) -> float | None:
        try:
            with open(f"/proc/{self._pid}/task/{thread}/schedstat", "rb") as file:  # noqa: PTH123
                return int(file.read().split()[1]) / 1e9
        except (OSError, IndexError):  # it has ended
            return None


class Watch:
    """A thread that records the waits of some processes while the block lasts."""

    def __init__(
        self, pids: Callable[[], Iterable[int]], record: Callable[[int, Waits], object]
    ) -> None:
        self._pids = pids
        self._record = record
        self._waits: dict[int, ProcessorWaits] = {}
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._enough.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._enough.wait(TICK):
            for pid in self._pids():
                waits = self._waits.setdefault(pid, ProcessorWaits(pid)).so_far()
                if waits is not None:
                    self._record(pid, waits)
