"""Feed: at most one snapshot a second, however many pages are open."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

from slotwise._admin.backends import Backend, open_backend
from slotwise._admin.sampling import Subject
from slotwise._core import fork
from slotwise.web._page_view import PageSnapshot, PageWatcher

_EVERY = 1.0  # seconds between two snapshots


class Feed:
    """The snapshots that all pages of an application share, in any event loop."""

    def __init__(self, url: str | None) -> None:
        self._url = url
        self._chosen: Counter[Subject] = Counter()  # what pages show in detail
        self._lock = fork.new_lock()  # held while a thread takes a snapshot
        self._last: PageSnapshot | None = None
        self._looked_at = float("-inf")

    @cached_property
    def backend(self) -> Backend:
        return open_backend(self._url)

    @cached_property
    def _watcher(self) -> PageWatcher:
        return PageWatcher(self.backend)

    @contextmanager
    def watching(self, chosen: Subject | None) -> Iterator[None]:
        """Include the details of ``chosen`` in snapshots meanwhile."""
        if chosen is None:
            yield
            return
        self._chosen[chosen] += 1
        try:
            yield
        finally:
            self._chosen[chosen] -= 1
            if not self._chosen[chosen]:
                del self._chosen[chosen]

    async def look(self, chosen: Subject | None = None) -> PageSnapshot:
        """Return the latest snapshot, with ``chosen`` in detail; one is taken every second."""
        look = self._fresh()
        if look is None or (chosen is not None and chosen not in look.details):
            look = await asyncio.to_thread(self._take, chosen)
        return look

    def _fresh(self) -> PageSnapshot | None:
        return self._last if time.monotonic() - self._looked_at < _EVERY else None

    def _take(self, chosen: Subject | None) -> PageSnapshot:
        with self._lock:
            look = self._fresh()
            if look is None:
                self._last = look = self._watcher.look(list(self._chosen))
                self._looked_at = time.monotonic()
            if chosen is not None and chosen not in look.details:
                self._watcher.add_detail(look, chosen)  # somebody has just begun to show it
            return look
