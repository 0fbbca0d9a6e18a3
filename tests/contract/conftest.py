"""The drivers under contract, and the two ways to call each.

A test asks for `make`, which makes semaphores of the driver at hand, or `make_limit`, which
makes limits of any kind, and for `speak`, through which it calls their methods: the coroutines,
or their sync twins in threads of their own.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from slotwise import (
    AcquisitionResult,
    Claimant,
    Limit,
    MemorySemaphore,
    Semaphore,
    SemaphoreStats,
    Tier,
    Tiers,
)
from slotwise.processes import ProcessSemaphore
from slotwise.redis import RedisConfig, RedisSemaphore
from tests.redis._server import SELDOM_BUSY, Server, patient_config, wait_for_answers

Url = str | RedisConfig

_names = itertools.count(1)

DRIVERS = ("memory", "processes", "redis")
LIMITS = (*DRIVERS, "memory tiers", "processes tiers", "redis tiers")


class Speak:
    """The verbs of a semaphore, asynchronous or through threads."""

    def __init__(self, sync: bool) -> None:
        self.sync = sync

    async def say(self, semaphore: Limit, verb: str, *args: Any, **options: Any) -> Any:
        if self.sync:
            return await asyncio.to_thread(getattr(semaphore, verb + "_sync"), *args, **options)
        return await getattr(semaphore, verb)(*args, **options)

    async def acquire(self, semaphore: Limit, *args: Any, **options: Any) -> AcquisitionResult:
        result = await self.say(semaphore, "acquire", *args, **options)
        assert isinstance(result, AcquisitionResult)
        return result

    async def try_acquire(
        self, semaphore: Limit, slots: int = 1, **options: Any
    ) -> AcquisitionResult | None:
        result = await self.say(semaphore, "try_acquire", slots, **options)
        assert result is None or isinstance(result, AcquisitionResult)
        return result

    async def release(self, semaphore: Limit, which: str | AcquisitionResult) -> bool:
        freed = await self.say(semaphore, "release", which)
        assert isinstance(freed, bool)
        return freed

    async def locked(self, semaphore: Limit) -> bool:
        return bool(await self.say(semaphore, "locked"))

    async def stats(self, semaphore: Limit) -> SemaphoreStats:
        stats = await self.say(semaphore, "stats")
        assert isinstance(stats, SemaphoreStats)
        return stats

    async def holders(self, semaphore: Semaphore) -> list[Claimant]:
        holders: list[Claimant] = await self.say(semaphore, "holders")
        return holders

    async def waiters(self, semaphore: Semaphore) -> list[Claimant]:
        waiters: list[Claimant] = await self.say(semaphore, "waiters")
        return waiters

    async def kick(self, semaphore: Semaphore, which: str | AcquisitionResult) -> bool:
        kicked = await self.say(semaphore, "kick", which)
        assert isinstance(kicked, bool)
        return kicked

    async def pause(self, limit: Limit, seconds: float) -> None:
        await self.say(limit, "pause", seconds)

    async def resize(self, semaphore: Semaphore, value: int) -> None:
        await self.say(semaphore, "resize", value)

    async def close(self, semaphore: Semaphore) -> None:
        await self.say(semaphore, "close")

    async def close_everywhere(self, semaphore: Semaphore, reason: str | None = None) -> None:
        await self.say(semaphore, "close_everywhere", reason)

    async def reopen(self, semaphore: Semaphore) -> None:
        await self.say(semaphore, "reopen")

    async def waiting(
        self, semaphore: Limit, count: int, *, unless: asyncio.Task[Any] | None = None
    ) -> None:
        """Return when exactly ``count`` wait, or a task is done: whatever time that takes."""
        async with asyncio.timeout(30):
            while (await semaphore.stats()).waiting != count:
                if unless is not None and unless.done():
                    return
                await asyncio.sleep(0.001)

    async def held(self, semaphore: Limit, count: int) -> None:
        async with asyncio.timeout(30):
            while (await semaphore.stats()).acquired_slots != count:
                await asyncio.sleep(0.001)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("contract"), *SELDOM_BUSY) as server:
        yield server


def config_on(server: Server, name: str) -> RedisConfig:
    """In a namespace of its own: a look at all names would find those of hundreds of tests."""
    return patient_config(server.url, namespace=name)


@pytest.fixture(params=["memory", "process", "redis"])
def url(request: pytest.FixtureRequest, name: str) -> Url:
    """Where limits are that a test makes itself: tiers, rates."""
    if request.param == "process":
        return f"process://{request.getfixturevalue('tmp_path')}/slots"
    is_redis = request.param == "redis"
    return config_on(request.getfixturevalue("server"), name) if is_redis else "memory://"


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest, name: str) -> Callable[..., Semaphore]:
    if request.param == "memory":
        return MemorySemaphore
    if request.param == "processes":
        folder = request.getfixturevalue("tmp_path") / "slots"
        return partial(ProcessSemaphore, directory=folder)
    server = request.getfixturevalue("server")
    return partial(RedisSemaphore, config=config_on(server, name))


@pytest.fixture(params=LIMITS)
def limit_driver(request: pytest.FixtureRequest, name: str) -> Callable[..., Limit]:
    """Makes limits: semaphores of every driver, and paths through tiers."""
    kind, _, tiers = request.param.partition(" ")
    where: Url = f"{kind}://"
    if kind == "redis":
        where = config_on(request.getfixturevalue("server"), name)
    if kind == "processes":
        where = f"process://{request.getfixturevalue('tmp_path')}/slots"
    if tiers:
        return partial(_path_through_tiers, where)
    if kind == "memory":
        return MemorySemaphore
    if kind == "processes":
        return partial(ProcessSemaphore, directory=request.getfixturevalue("tmp_path") / "slots")
    return partial(RedisSemaphore, config=where)


def _path_through_tiers(url: Url, value: int, **options: Any) -> Limit:
    """A path whose narrowest tier is always the fullest."""
    tiers = Tier("tenant", value, keyed=True), Tier("all", value + 1)
    return Tiers(*tiers, url=url, **options).at(tenant="acme")


@pytest.fixture
def make_limit(limit_driver: Callable[..., Limit], name: str) -> Callable[..., Limit]:
    """Make a limit of the kind at hand; of one name unless another is given."""

    def make(value: int = 1, **options: Any) -> Limit:
        return limit_driver(value=value, **{"name": name, **options})

    return make


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


@pytest.fixture(autouse=True)
def patient_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_answers(monkeypatch)
