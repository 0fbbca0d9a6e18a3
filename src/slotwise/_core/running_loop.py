"""running_loop: the event loop of this thread, without importing asyncio.

That import takes longer than all that ``slotwise run`` does, and it runs no loop.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


def running_loop() -> AbstractEventLoop | None:
    """Return the event loop that runs in this thread; None without one."""
    asyncio: Any = sys.modules.get("asyncio")  # whoever runs a loop has imported it
    ask = getattr(asyncio, "_get_running_loop", None)  # not yet, while it is being imported
    loop: AbstractEventLoop | None = None if ask is None else ask()
    return loop
