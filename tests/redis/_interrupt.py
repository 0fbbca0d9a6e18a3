"""An interrupt at one exact place: in a call to the heartbeat thread, before that knows of it."""

from __future__ import annotations

import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from slotwise.redis._heartbeat_thread import HeartbeatThread


@contextmanager
def interrupted_on_its_way_to(heartbeat_thread: HeartbeatThread) -> Iterator[None]:
    """Send this thread a real SIGINT while its next call waits for that thread to start."""
    caller = threading.get_ident()
    in_the_way = threading.Event()
    give_up = time.monotonic() + 30

    def inside(method: Any) -> bool:
        frames = traceback.walk_stack(sys._current_frames()[caller])
        return any(frame.f_code is method.__code__ for frame, _ in frames)

    def interrupt() -> None:
        with heartbeat_thread._starting:
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
