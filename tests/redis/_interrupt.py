"""An interrupt at one exact place: in a call to the heartbeat thread, before that knows of it."""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from tests._stdlib import frame_of
from tests.redis._inside import starting

from slotwise.redis._heartbeat_thread import HeartbeatThread


@contextmanager
def interrupted_on_its_way_to(heartbeat_thread: HeartbeatThread) -> Iterator[None]:
    """Send this thread a real SIGINT while its next call waits for that thread to start."""
    caller = threading.get_ident()
    in_the_way = threading.Event()
    give_up = time.monotonic() + 30

    def inside(method: Any) -> bool:
        # CPython holds a lock of its own in `_current_frames`. A collection there runs callbacks,
        # which may let a thread in that waits for this lock with the GIL: then all threads hang.
        gc.disable()
        try:
            frame: object = frame_of(caller)
        finally:
            gc.enable()
        # That thread goes on meanwhile: what it has just left may be something else by now.
        while isinstance(frame, FrameType):
            if frame.f_code is method.__code__:
                return True
            frame = frame.f_back
        return False

    def interrupt() -> None:
        with starting(heartbeat_thread):
            in_the_way.set()
            while not inside(HeartbeatThread._started) and time.monotonic() < give_up:
                time.sleep(0.001)
            signal.pthread_kill(caller, signal.SIGINT)
            while inside(HeartbeatThread.run) and time.monotonic() < give_up:
                time.sleep(0.001)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    assert in_the_way.wait(30)
    try:
        yield
    finally:
        interrupter.join(60)
