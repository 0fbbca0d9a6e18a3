"""Start a thread for one call that may block: opening a connection, waiting for a file's lock."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable


def start_thread(
    name: str, run: Callable[[], object], on_failure: Callable[[RuntimeError], object]
) -> None:
    """Start a daemon thread; ``on_failure`` is called, here, if the system has none left.

    Nothing happens while the interpreter shuts down: no loop will act on the outcome.
    """
    try:
        threading.Thread(target=run, name=f"slotwise-{name}", daemon=True).start()
    except RuntimeError as error:
        if not sys.is_finalizing():
            on_failure(error)
