"""Wait for file descriptors, however high their numbers are."""

from __future__ import annotations

import select


def readable(*descriptors: int, timeout: float | None = None) -> set[int]:
    """Return those that can be read, once there are some or ``timeout`` seconds are over.

    ``select.select`` refuses numbers from 1,024 on, which a process with many connections has.
    """
    poller = select.poll()
    for each in descriptors:
        poller.register(each, select.POLLIN)
    return {fd for fd, _ in poller.poll(None if timeout is None else timeout * 1000)}
