"""The backends under test: memory, processes and a real server, at one instant and in stages."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.redis._server import SELDOM_BUSY, Server, patient_config, wait_for_answers

from slotwise import SlotManager, Tier, Tiers

_names = itertools.count(1)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("tiers"), *SELDOM_BUSY) as server:
        yield server


def options_of(request: pytest.FixtureRequest, backend: str) -> dict[str, Any]:
    """The arguments that choose a backend; "redis-staged" is Redis, in stages."""
    place, _, staged = backend.partition("-")
    options: dict[str, Any] = {"atomic": not staged}
    if place == "redis":
        name = f"tiers-{os.getpid()}-{next(_names)}"
        server = request.getfixturevalue("server")
        # In a namespace of its own: staged tiers look for their keys among all of a namespace.
        options |= {"url": patient_config(server.url, namespace=name), "name": name}
    if place == "process":
        options["url"] = f"process://{request.getfixturevalue('process_directory')}"
        options["name"] = f"tiers-{next(_names)}"
    return options


@pytest.fixture
def process_directory(tmp_path: Path) -> Path:
    return tmp_path / "slots"


@pytest.fixture(params=["memory", "process", "redis", "memory-staged", "redis-staged"])
def anywhere(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Arguments for each backend, atomic and staged."""
    return options_of(request, request.param)


@pytest.fixture(params=["memory", "process", "redis"])
def atomic(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Arguments for each backend that takes all tiers at one instant."""
    return options_of(request, request.param)


@pytest_asyncio.fixture
async def manager(anywhere: dict[str, Any]) -> AsyncIterator[Callable[..., SlotManager]]:
    """Makes slot managers of the backend at hand, closed after the test."""
    made: list[SlotManager] = []

    def make(**options: Any) -> SlotManager:
        made.append(SlotManager(**{**anywhere, **options}))
        return made[-1]

    yield make
    for slots in made:
        await slots.close()


@pytest_asyncio.fixture
async def tiers(atomic: dict[str, Any]) -> AsyncIterator[Callable[..., Tiers]]:
    """Makes atomic tiers of the backend at hand, closed after the test."""
    async for make in _made_with(atomic):
        yield make


@pytest_asyncio.fixture
async def any_tiers(anywhere: dict[str, Any]) -> AsyncIterator[Callable[..., Tiers]]:
    """Makes tiers of the backend at hand, atomic or staged, closed after the test."""
    async for make in _made_with(anywhere):
        yield make


async def _made_with(given: dict[str, Any]) -> AsyncIterator[Callable[..., Tiers]]:
    made: list[Tiers] = []

    def make(*tiers: Tier, **options: Any) -> Tiers:
        made.append(Tiers(*tiers, **{**given, **options}))
        return made[-1]

    yield make
    for one in made:
        await one.close()


class Look:
    """Waits for states, whatever time they take; the limit is for tests that hang."""

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(30):
            while not await condition():
                await asyncio.sleep(0.002)

    async def waiting(self, tiers: Tiers, tier: str, count: int) -> None:
        async def so_many() -> bool:
            return (await tiers.stats())[tier].waiting == count

        await self.until(so_many)

    async def waiters(self, tiers: Tiers, count: int) -> None:
        async def so_many() -> bool:
            return len(await tiers.waiters()) == count

        await self.until(so_many)

    async def uploads_waiting(self, slots: SlotManager, count: int) -> None:
        async def so_many() -> bool:
            return max(tier.waiting for tier in (await slots._uploads.stats()).values()) == count

        await self.until(so_many)

    async def downloads_waiting(self, slots: SlotManager, count: int) -> None:
        await self.waiting(slots._downloads, "downloads", count)


@pytest.fixture
def look() -> Look:
    return Look()


@pytest.fixture(autouse=True)
def patient_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_answers(monkeypatch)
