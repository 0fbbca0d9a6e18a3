"""LineHome: which event loop may use the line of a tracker outside the section.

The tracker decides when the home moves. A home never changes, it is replaced: so a giver that
reads it once gets the loop and its attributes from the same moment.
"""

from __future__ import annotations

import asyncio
from asyncio import _get_running_loop
from typing import Any


class _NoLoop:
    """Stands for a loop that runs in no thread."""

    __slots__ = ()

    _thread_id = None


_NO_LOOP = _NoLoop()


class LineHome:
    """The one event loop that may use the line outside the section, or none."""

    __slots__ = ("asyncio_loop", "has_moved", "is_shut", "loop")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop | None,
        *,
        has_moved: bool = False,
        is_shut: bool = False,
        is_copied: bool = False,
    ) -> None:
        self.loop = loop
        # The same, or `_NO_LOOP` if it isn't one of asyncio's own. Those have the id of the thread
        # that they run in: asking for the running loop instead is a system call in Python 3.11. In
        # a forked child the loops of the parent run in no thread, though they have the id of one.
        self.asyncio_loop: Any = loop if _is_of_asyncio(loop) and not is_copied else _NO_LOOP
        self.has_moved = has_moved  # whether another loop was the home before
        self.is_shut = is_shut  # whether nobody may use the line any more

    def is_running_here(self) -> bool:
        return self.loop is not None and self.loop is _get_running_loop()


def _is_of_asyncio(loop: asyncio.AbstractEventLoop | None) -> bool:
    """Whether it has the id of its thread, and makes the usual futures."""
    usual = asyncio.BaseEventLoop.create_future
    return hasattr(loop, "_thread_id") and getattr(type(loop), "create_future", None) is usual


# What a tracker has before anybody has waited, and once nobody may wait there any more.
NO_HOME = LineHome(None)
SHUT = LineHome(None, has_moved=True, is_shut=True)
