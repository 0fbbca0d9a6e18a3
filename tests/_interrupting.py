"""Interrupt this thread: once something has come about, or while it starts another."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest


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


# What starts a thread in the system, which has another name since Python 3.13.
_START = (
    "_start_joinable_thread"
    if hasattr(threading, "_start_joinable_thread")
    else "_start_new_thread"
)

# Where a signal can strike in the start of a thread, and with what. When an Exception strikes
# after there is a thread, Python forgets the thread, which dies of that.
AMID_STARTS: list[tuple[str, type[BaseException]]] = [
    ("before", Interrupted),
    ("after", Interrupted),
    ("after", KeyboardInterrupt),
]


@contextmanager
def interrupted_start(point: str, error: type[BaseException]) -> Iterator[None]:
    """Raise ``error`` in the next start of a thread, before or after there is one.

    Only in this thread: those that earlier tests left behind may start others at any time.
    """
    start, here = getattr(threading, _START), threading.get_ident()

    def strike(run: Callable[[], object], *args: object, **options: object) -> object:
        if threading.get_ident() != here:
            return start(run, *args, **options)
        setattr(threading, _START, start)
        if point == "after":
            dies = issubclass(error, Exception)
            start((lambda: None) if dies else run, *args, **options)
        raise error

    setattr(threading, _START, strike)
    try:
        with pytest.raises(error):
            yield
        assert getattr(threading, _START) is start, "no thread was started"
    finally:
        setattr(threading, _START, start)
