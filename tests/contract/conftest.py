"""The drivers under contract, and the two ways to speak to each.

A test asks for `make`, which makes semaphores of the driver at hand, and for
`speak`, through which it calls their verbs: the coroutines, or their sync twins
in threads of their own.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from slotwise import AcquisitionResult, Claimant, MemorySemaphore, Semaphore, SemaphoreStats
from slotwise.processes import ProcessSemaphore
from slotwise.redis import RedisConfig, RedisSemaphore
from tests.redis._server import Server

_names = itertools.count(1)

DRIVERS = ("memory", "processes", "redis")


class Speak:
    """The verbs of a semaphore, asynchronous or through threads."""

    def __init__(self, sync: bool) -> None:
        self.sync = sync

    async def _say(self, semaphore: Semaphore, verb: str, *args: Any, **options: Any) -> Any:
        if self.sync:
            return await asyncio.to_thread(getattr(semaphore, verb + "_sync"), *args, **options)
        return await getattr(semaphore, verb)(*args, **options)

    async def acquire(self, semaphore: Semaphore, *args: Any, **options: Any) -> AcquisitionResult:
        result = await self._say(semaphore, "acquire", *args, **options)
        assert isinstance(result, AcquisitionResult)
        return result

    async def try_acquire(
        self, semaphore: Semaphore, slots: int = 1, **options: Any
    ) -> AcquisitionResult | None:
        result = await self._say(semaphore, "try_acquire", slots, **options)
        assert result is None or isinstance(result, AcquisitionResult)
        return result

    async def release(self, semaphore: Semaphore, which: str | AcquisitionResult) -> bool:
        freed = await self._say(semaphore, "release", which)
        assert isinstance(freed, bool)
        return freed

    async def locked(self, semaphore: Semaphore) -> bool:
        return bool(await self._say(semaphore, "locked"))

    async def stats(self, semaphore: Semaphore) -> SemaphoreStats:
        stats = await self._say(semaphore, "stats")
        assert isinstance(stats, SemaphoreStats)
        return stats

    async def holders(self, semaphore: Semaphore) -> list[Claimant]:
        holders: list[Claimant] = await self._say(semaphore, "holders")
        return holders

    async def waiters(self, semaphore: Semaphore) -> list[Claimant]:
        waiters: list[Claimant] = await self._say(semaphore, "waiters")
        return waiters

    async def kick(self, semaphore: Semaphore, which: str | AcquisitionResult) -> bool:
        kicked = await self._say(semaphore, "kick", which)
        assert isinstance(kicked, bool)
        return kicked

    async def resize(self, semaphore: Semaphore, value: int) -> None:
        await self._say(semaphore, "resize", value)

    async def close(self, semaphore: Semaphore) -> None:
        await self._say(semaphore, "close")

    async def close_everywhere(self, semaphore: Semaphore, reason: str | None = None) -> None:
        await self._say(semaphore, "close_everywhere", reason)

    async def reopen(self, semaphore: Semaphore) -> None:
        await self._say(semaphore, "reopen")

    async def waiting(self, semaphore: Semaphore, count: int) -> None:
        """Return when exactly ``count`` wait: a state, whatever time it takes."""
        async with asyncio.timeout(30):
            while (await semaphore.stats()).waiting != count:
                await asyncio.sleep(0.001)

    async def held(self, semaphore: Semaphore, count: int) -> None:
        async with asyncio.timeout(30):
            while (await semaphore.stats()).acquired_slots != count:
                await asyncio.sleep(0.001)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("contract")) as server:
        yield server


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> Callable[..., Semaphore]:
    if request.param == "memory":
        return MemorySemaphore
    if request.param == "processes":
        folder = request.getfixturevalue("tmp_path") / "slots"
        return partial(ProcessSemaphore, directory=folder)
    server = request.getfixturevalue("server")
    return partial(RedisSemaphore, config=RedisConfig(server.url))


@pytest.fixture(params=["async", "sync"])
def speak(request: pytest.FixtureRequest) -> Speak:
    return Speak(sync=request.param == "sync")


@pytest.fixture
def name() -> str:
    """A name that no other test uses."""
    return f"contract-{os.getpid()}-{next(_names)}"


@pytest.fixture
def make(driver: Callable[..., Semaphore], name: str) -> Callable[..., Semaphore]:
    """Make a semaphore of the driver at hand; of one name unless another is given."""

    def make(value: int = 1, **options: Any) -> Semaphore:
        return driver(value=value, **{"name": name, **options})

    return make
