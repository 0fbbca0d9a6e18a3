"""A process that takes and gives on all objects at random, and records it, until SIGTERM.

python -m tests.soak._worker URL FOLDER HISTORY SEED

SIGUSR1 makes it fork a child, which takes and gives for a moment too, in a thread's way.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
import sys
import threading
import time
import warnings
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from tests._stdlib import leave
from tests.soak._history import Recorder
from tests.soak._objects import INTERVAL, LIMITS, Objects, Wish
from tests.soak._processor import Watch

from slotwise import AcquireTimeout, BackendError

TASKS = 3  # of each object
TICK, STOOD_STILL = 0.05, 0.2
HOLDS = (0.002, 0.01, 0.02, 0.02, 0.3)
# Most faults take longer than that. So whoever has the last number often holds it for long: it is
# one at a time, and the others go on with the rest.
LAST_NUMBER, LONG = 3, INTERVAL + 2


class Worker:
    def __init__(self, objects: Objects, recorder: Recorder, dice: Random) -> None:
        self._objects = objects
        self.recorder = recorder
        self._dice = dice
        self._numbers = itertools.count(1)
        self.enough = asyncio.Event()

    async def run(self) -> None:
        tasks = [self._use(name) for name in LIMITS for _ in range(TASKS)]
        await asyncio.gather(*tasks)

    async def _use(self, name: str) -> None:
        while not self.enough.is_set():
            wish = self._objects.wish(name, self._dice)
            await self._once(wish, self._dice.choice(HOLDS))
            await asyncio.sleep(self._dice.choice((0, 0.01, 0.03)))

    async def _once(self, wish: Wish, hold: float) -> None:
        """Take, hold and give back; or give up, by a time-out or cancelled."""
        n = next(self._numbers)
        self.recorder.write(
            "request", n=n, object=wish.object, limits=wish.limits, slots=wish.slots
        )
        way = self._dice.random()
        try:
            # One that is cancelled may have been granted in the same tick: nothing may leak.
            async with asyncio.timeout(0.05 if way < 0.05 else None):
                acquired = await wish.take(0.05 if way > 0.95 else None)
        except (AcquireTimeout, TimeoutError):
            self.recorder.write("gave up", n=n)
            return
        except BackendError as error:
            self.recorder.write("error", n=n, error=f"{type(error).__name__}: {error}")
            await asyncio.sleep(0.05)
            return
        id_, token = acquired.acquisition_id, acquired.fencing_token
        self.recorder.write("grant", n=n, id=id_, token=token)
        if acquired.slot_number == LAST_NUMBER and self._dice.random() < 0.3:
            hold = LONG
        with suppress(TimeoutError):
            async with asyncio.timeout(hold):
                await acquired.lost
        if acquired.lost.is_set():
            self.recorder.write("lost", n=n, reason=acquired.lost.reason)
            return
        self.recorder.write("release", n=n)
        try:
            freed = await wish.release(acquired)
        except BackendError as error:
            self.recorder.write("error", n=n, error=f"{type(error).__name__}: {error}")
        else:
            self.recorder.write("released", n=n, freed=freed)


def fork(objects: Objects, history: Path) -> None:
    """Let a child use the semaphores that it has inherited; it has no loop."""
    if os.fork():
        return
    code = 1
    try:
        recorder = Recorder(history, f"child-{os.getpid()}")
        for n, (name, semaphore) in itertools.product(range(3), objects.semaphores.items()):
            number = 2 * n + (name == "redis")
            recorder.write("request", n=number, object=name, limits=[name], slots=1)
            try:
                _use_blocking(semaphore, number, recorder)
            except BackendError as error:
                recorder.write("error", n=number, error=f"{type(error).__name__}: {error}")
        recorder.write("end")
        code = 0
    finally:
        leave(code)


def _use_blocking(semaphore: Any, number: int, recorder: Recorder) -> None:
    acquired = semaphore.acquire_sync()
    id_, token = acquired.acquisition_id, acquired.fencing_token
    recorder.write("grant", n=number, id=id_, token=token)
    if acquired.lost.wait(0.005):
        recorder.write("lost", n=number, reason=acquired.lost.reason)
        return
    recorder.write("release", n=number)
    freed = semaphore.release_sync(acquired)
    recorder.write("released", n=number, freed=freed)


async def main(url: str, folder: Path, history: Path, seed: str) -> None:
    dice = Random(seed)
    objects = Objects(url, folder)
    recorder = Recorder(history, f"worker-{os.getpid()}")
    worker = Worker(objects, recorder, dice)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, worker.enough.set)
    loop.add_signal_handler(signal.SIGUSR1, fork, objects, history)
    loop.add_signal_handler(signal.SIGCHLD, _reap)
    threading.Thread(target=record_stand_stills, args=(recorder,), daemon=True).start()
    with Watch(lambda: [os.getpid()], partial(recorder.write_waits, is_server=False)):
        await worker.run()
    recorder.write("end")


def record_stand_stills(recorder: Recorder) -> None:
    """Note when this process didn't run: what follows from that is no fault of the limits."""
    since = time.monotonic()
    while True:
        time.sleep(TICK)
        if time.monotonic() - since > STOOD_STILL:
            recorder.write("stood still", since=since)
        since = time.monotonic()


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    warnings.simplefilter("ignore", DeprecationWarning)  # forks beside threads are the point
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]))
