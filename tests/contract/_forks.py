"""Forks amid eight busy threads on all drivers together; each child uses all of them too.

python -m tests.contract._forks FOLDER REDIS_URL CHILDREN
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import traceback
import warnings
from contextlib import suppress
from pathlib import Path

from slotwise import AcquireTimeout, AcquisitionResult, MemorySemaphore, Semaphore
from slotwise.processes import ProcessSemaphore
from slotwise.redis import RedisConfig, RedisSemaphore
from tests._stdlib import leave

warnings.simplefilter("ignore", DeprecationWarning)
logging.basicConfig(level=logging.ERROR)  # ttls that end are warnings, and wanted here

AT_A_TIME = 6
LONG = 40.0  # seconds; who waits longer hangs


class Drivers:
    """A semaphore of each driver, by its arguments."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder = folder
        self._config = RedisConfig(url=url)

    def make(self, name: str, value: int, ttl: float | None = None) -> list[Semaphore]:
        return [
            MemorySemaphore(name=name, value=value, ttl=ttl),
            ProcessSemaphore(name=name, value=value, ttl=ttl, directory=self._folder),
            RedisSemaphore(name=name, value=value, ttl=ttl, config=self._config),
        ]


def keep_busy(semaphores: list[Semaphore], enough: threading.Event) -> None:
    """Grants, waits, time-outs and ends of ttls."""
    while not enough.is_set():
        for semaphore in semaphores:
            with suppress(AcquireTimeout):
                acquired = semaphore.acquire_sync(timeout=0.002)
                acquired.lost.wait(0.0005)
                if acquired.slot_number == 1:  # the others are left to their ttl
                    semaphore.release_sync(acquired)


def look_for_losses(held: list[AcquisitionResult], enough: threading.Event) -> None:
    while not enough.is_set():
        for acquired in held:
            assert not acquired.lost.wait(0.0001)


def live_on(drivers: Drivers, shared: list[Semaphore], held: list[AcquisitionResult]) -> None:
    """What a worker of a prefork server may expect of all that it inherited."""
    own = str(os.getpid())
    for timed in drivers.make(f"timed {own}", 1, 0.05):
        first = timed.acquire_sync(timeout=LONG)
        second = timed.acquire_sync(timeout=LONG)  # when the ttl of the first ends
        assert first.lost.wait(LONG)
        assert second.lost.wait(LONG)
    for full in drivers.make(f"full {own}", 1):
        full.acquire_sync(timeout=LONG)
        try:
            full.acquire_sync(timeout=0.05)
        except AcquireTimeout:
            pass
        else:
            raise AssertionError("a slot of a semaphore that has none")
    for semaphore, acquired in zip(shared, held, strict=True):
        with semaphore.cm(timeout=LONG):
            pass
        assert not acquired.lost.wait(0.001)
        asyncio.run(await_in_vain(acquired))


async def await_in_vain(acquired: AcquisitionResult) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(0.001):
            await acquired.lost
            raise AssertionError("it was not lost")


def fork(*args: object) -> int:
    child = os.fork()
    if child:
        return child
    signal.alarm(int(LONG))  # a child that hangs is one that fails
    code = 1
    try:
        live_on(*args)  # type: ignore[arg-type]
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        leave(code)


def main(folder: Path, url: str, children: int) -> None:
    sys.setswitchinterval(1e-5)  # so that threads are forked away in the middle of something
    drivers = Drivers(folder, url)
    busy = drivers.make("busy", 3, 0.01)
    shared = drivers.make("shared", 40)
    held = [semaphore.acquire_sync() for semaphore in shared]
    enough = threading.Event()
    threads = [
        *(threading.Thread(target=keep_busy, args=(busy, enough)) for _ in range(2)),
        *(threading.Thread(target=keep_busy, args=(busy[:1], enough)) for _ in range(2)),
        *(threading.Thread(target=keep_busy, args=(busy[1:2], enough)) for _ in range(3)),
        threading.Thread(target=look_for_losses, args=(held, enough)),
    ]
    for thread in threads:
        thread.start()
    codes = []
    for begun in range(0, children, AT_A_TIME):
        count = min(AT_A_TIME, children - begun)
        crowd = [fork(drivers, shared, held) for _ in range(count)]
        codes += [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in crowd]
    enough.set()
    for thread in threads:
        thread.join()
    assert codes == [0] * children, codes
    for semaphore, acquired in zip(shared, held, strict=True):
        assert semaphore.release_sync(acquired) is True
    print("ok")  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
