"""Feed: at most one snapshot a second, however many pages are open."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

from slotwise._admin.backends import Backend, open_backend
from slotwise._core import fork
from slotwise.web._page_view import PageSnapshot, PageWatcher

_EVERY = 1.0  # seconds between two snapshots


class Feed:
    """The snapshots that all pages of an application share, in any event loop."""

    def __init__(self, url: str | None) -> None:
        self._url = url
        self._names: Counter[str] = Counter()  # the names that pages show in detail
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
    def watching(self, name: str | None) -> Iterator[None]:
        """Include the details of ``name`` in snapshots meanwhile."""
        if name is None:
            yield
            return
        self._names[name] += 1
        try:
            yield
        finally:
            self._names[name] -= 1
            if not self._names[name]:
                del self._names[name]

    async def look(self, name: str | None = None) -> PageSnapshot:
        """Return the latest snapshot, with ``name`` in detail; take one if it is a second old."""
        look = self._fresh()
        if look is None or (name is not None and name not in look.details):
            look = await asyncio.to_thread(self._take, name)
        return look

    def _fresh(self) -> PageSnapshot | None:
        return self._last if time.monotonic() - self._looked_at < _EVERY else None

    def _take(self, name: str | None) -> PageSnapshot:
        with self._lock:
            look = self._fresh()
            if look is None:
                self._last = look = self._watcher.look(list(self._names))
                self._looked_at = time.monotonic()
            if name is not None and name not in look.details:
                self._watcher.add_detail(look, name)  # somebody has just begun to show it
            return look
