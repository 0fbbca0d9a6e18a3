"""Ask the kernel how long a thread waits for a processor.

On a loaded machine an operation takes as long as on a slow file system. This tells them
apart: a thread that waits for its disk sleeps, one that waits for a processor is queued.
Outside Linux nothing is known, and no thread ever counts as waiting.
"""

from __future__ import annotations

import os


class ProcessorQueue:
    """How long one thread at a time is queued for a processor, from look to look."""

    def __init__(self) -> None:
        self._thread_id = 0
        self._queued = 0  # nanoseconds, as of the last look
        self._timeslices = 0  # how often it has had a processor

    def look(self, thread_id: int, seconds: float) -> float:
        """Return how long ``thread_id`` was queued in the ``seconds`` since the last look.

        0 if that look was at another thread, or if there is no thread (``thread_id`` 0).
        """
        known = thread_id == self._thread_id
        queued_before, timeslices_before = self._queued, self._timeslices
        self._thread_id = thread_id
        if not thread_id:
            return 0.0
        try:
            _on_processor, queued, timeslices = _read(thread_id, "schedstat").split()
            self._queued, self._timeslices = int(queued), int(timeslices)
            if not known:
                return 0.0
            if self._timeslices == timeslices_before and _is_runnable(thread_id):
                return seconds  # the kernel adds it up only when the thread gets its next one
        except (OSError, ValueError):  # it has ended, or there is no such file here
            return 0.0
        return (self._queued - queued_before) * 1e-9


def _is_runnable(thread_id: int) -> bool:
    _name, _, rest = _read(thread_id, "stat").rpartition(b")")
    return rest.split()[0] == b"R"


def _read(thread_id: int, name: str) -> bytes:
    fd = os.open(f"/proc/self/task/{thread_id}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 1024)
    finally:
        os.close(fd)
