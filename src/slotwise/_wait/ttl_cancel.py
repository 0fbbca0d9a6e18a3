"""Cancel the task of an acquisition that has ended, unless the task releases first.

An acquisition can end while its task still works: its ttl is over, or it was lost. If the
semaphore was asked to cancel the task then, the cancel has to travel to the task's event
loop. A task that leaves its block or releases before the cancel arrives must not be
cancelled: it would be hit in code that has nothing to do with the slot.

This module doesn't decide when an acquisition ends; drivers do:

    cancel = ttl_cancels.announce(key, task, reason)    # when it ends, under the driver's lock
    acquired.lost.set(reason)
    cancel.send()                                       # after the lock

    ttl_cancels.keep_task(key)                          # when it is released
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio


class TtlCancels:
    """The cancels that have been announced and not carried out, by the key of the acquisition.

    Every method is a few single operations on a dict, safe in any thread.
    """

    __slots__ = ("_owners",)

    def __init__(self) -> None:
        self._owners: dict[Hashable, object] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def announce(
        self, key: Hashable, task: asyncio.Task[Any], reason: str, *, owner: object = None
    ) -> TtlCancel:
        """Have ``task`` cancelled with ``reason`` once the result is sent.

        From now on `keep_task` prevents it. ``owner`` is what ``key`` belongs to, for
        drivers that know a key without knowing whether it is a key of theirs.
        """
        self._owners[key] = owner
        return TtlCancel(self, key, task, reason)

    def keep_task(self, key: Hashable, *, owner: object = None) -> None:
        """Don't cancel the task of ``key``: it has left its block, or released."""
        if self._owners and self._owners.get(key, _MISSING) is owner:
            self._owners.pop(key, None)

    def clear(self) -> None:
        """Cancel nobody: in a forked child the tasks are the parent's."""
        self._owners.clear()

    def _take(self, key: Hashable) -> bool:
        return self._owners.pop(key, _MISSING) is not _MISSING


class TtlCancel:
    """The cancel of one task, on its way to the task's event loop.

    One that never arrives, because the loop is closed, leaves nothing behind.
    """

    __slots__ = ("_cancels", "_key", "_reason", "_task")

    def __init__(
        self, cancels: TtlCancels, key: Hashable, task: asyncio.Task[Any], reason: str
    ) -> None:
        self._cancels = cancels
        self._key = key
        self._task = task
        self._reason = reason

    def send(self) -> None:
        """Send it to the task's loop, from any thread."""
        try:
            self._task.get_loop().call_soon_threadsafe(self._cancel_task)
        except RuntimeError:
            pass  # the loop is closed, and the task with it

    def _cancel_task(self) -> None:
        if self._cancels._take(self._key):
            self._task.cancel(self._reason)

    def __del__(self) -> None:
        self._cancels._take(self._key)


_MISSING = object()
