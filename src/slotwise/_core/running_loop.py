"""running_loop: the event loop of this thread, without importing asyncio.

That import takes longer than all that ``slotwise run`` does, and it runs no loop.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


def _of_what_is_imported() -> AbstractEventLoop | None:
    try:
        loop: AbstractEventLoop | None = sys.modules["asyncio"]._get_running_loop()
    except (KeyError, AttributeError):  # nobody has imported it, or not all of it yet
        return None
    return loop


# Returns the event loop that runs in this thread; None without one.
running_loop: Callable[[], AbstractEventLoop | None] = _of_what_is_imported

# So it is with memory://, whose acquisitions would notice the detour.
if "asyncio" in sys.modules:
    import asyncio

    running_loop = asyncio._get_running_loop
