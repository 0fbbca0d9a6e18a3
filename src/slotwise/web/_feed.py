"""Feed: at most one snapshot a second, however many pages are open."""

from __future__ import annotations

import asyncio
from functools import cached_property

from slotwise._admin.backends import Backend, open_backend
from slotwise._admin.snapshot import SharedSnapshot, Subject
from slotwise._core import fork
from slotwise.web._page_view import PageSnapshot, PageWatcher


class Feed:
    """The snapshots that all pages of an application share, in any event loop."""

    def __init__(self, url: str | None, every: float = 1.0) -> None:
        self._url = url
        self._every = every
        self._lock = fork.new_lock()  # held while a thread takes a snapshot

    @cached_property
    def backend(self) -> Backend:
        return open_backend(self._url)

    @cached_property
    def _watcher(self) -> PageWatcher:
        return PageWatcher(self.backend)

    @cached_property
    def _snapshots(self) -> SharedSnapshot[PageSnapshot]:
        return SharedSnapshot(self._watcher.look, self._every)

    async def look(self, chosen: Subject | None = None) -> PageSnapshot:
        """Return the latest snapshot, with ``chosen`` in detail; one is taken every second."""
        return await asyncio.to_thread(self._take, chosen)

    def _take(self, chosen: Subject | None) -> PageSnapshot:
        with self._lock:
            look = self._snapshots.get()
            if chosen is not None and chosen not in look.details:
                self._watcher.add_detail(look, chosen)
            return look
