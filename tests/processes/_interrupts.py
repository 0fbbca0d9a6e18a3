"""Acquire and release in the main thread, interrupted again and again at any point.

    python -m tests.processes._interrupts DIRECTORY ROUNDS

Prints how many slots are still held.
"""

from __future__ import annotations

import random
import signal
import sys
from pathlib import Path

from slotwise.processes import ProcessSemaphore


def take_and_give(semaphore: ProcessSemaphore) -> None:
    while True:
        acquired = None
        try:
            acquired = semaphore.acquire_sync()
        finally:
            if acquired is not None:
                semaphore.release_sync(acquired)


def main(directory: Path, rounds: int) -> None:
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    semaphore = ProcessSemaphore(name="s", value=1000, directory=directory)
    for _ in range(rounds):
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(0.001, 0.003))
            take_and_give(semaphore)
        except KeyboardInterrupt:
            pass
    print(semaphore.stats_sync().acquired_slots)  # noqa: T201
    # It stays alive, and blocks nobody.
    sys.stdout.flush()
    sys.stdin.readline()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
