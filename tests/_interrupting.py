"""Interrupt this thread with a real signal once something has come about."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Interrupted(Exception):
    """What the handler of the signal raises, once."""


@contextmanager
def interrupted_when(is_time: Callable[[], object]) -> Iterator[None]:
    """Raise `Interrupted` in what this thread does meanwhile, as soon as ``is_time()``.

    The signal is sent again and again: Python doesn't see one that comes just before it blocks.
    """
    raised = threading.Event()
    caller = threading.get_ident()

    def handle(*_: object) -> None:
        if not raised.is_set():
            raised.set()
            raise Interrupted

    def interrupt() -> None:
        give_up = time.monotonic() + 60
        while not is_time() and time.monotonic() < give_up:
            time.sleep(0.001)
        while not raised.is_set() and time.monotonic() < give_up:
            signal.pthread_kill(caller, signal.SIGUSR1)
            time.sleep(0.01)

    former = signal.signal(signal.SIGUSR1, handle)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, former)
