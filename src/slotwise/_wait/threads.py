"""Start threads: one for a call that may block, or one that serves a whole process.

What such a thread does is up to its owner.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any


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


class SingleThread:
    """A daemon thread that is started when it is needed, and of which never two run.

    A signal handler may raise in the middle of a start. Then nobody can tell whether a thread
    will run: Python may have forgotten it, and it dies of that. It counts as not started, and if
    it does run, it ends at once.
    """

    __slots__ = ("_lock", "_name", "_run", "thread")

    # Changed under the lock only:
    #   thread  the one that runs or is about to; None if the next caller has to start one

    def __init__(self, name: str, run: Callable[[], object], lock: Any) -> None:
        self._name = f"slotwise-{name}"
        self._run = run
        self._lock = lock
        self.thread: threading.Thread | None = None

    def start(self) -> None:
        """Start it; the caller holds the lock, and has seen that there is none.

        Raises:
            RuntimeError: the system has none left, or the interpreter is shutting down.
        """
        self.thread = threading.Thread(target=self._begin, name=self._name, daemon=True)
        try:
            self.thread.start()
        except BaseException:
            self.thread = None
            raise

    def _begin(self) -> None:
        with self._lock:  # the start is over, and nobody else has started one
            if self.thread is not threading.current_thread():
                return
        self._run()
