"""The backends under test: memory, processes and a real server."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests._inside import uploads_of
from tests.redis._server import SELDOM_BUSY, Server, patient_config, wait_for_answers

from slotwise import SlotManager, Tier, Tiers

_names = itertools.count(1)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("tiers"), *SELDOM_BUSY) as server:
        yield server


def options_of(request: pytest.FixtureRequest, place: str) -> dict[str, Any]:
    """The arguments that choose a backend."""
    if place == "redis":
        name = f"tiers-{os.getpid()}-{next(_names)}"
        server = request.getfixturevalue("server")
        return {"url": patient_config(server.url, namespace=name), "name": name}
    if place == "process":
        directory = request.getfixturevalue("process_directory")
        return {"url": f"process://{directory}", "name": f"tiers-{next(_names)}"}
    return {}


@pytest.fixture
def process_directory(tmp_path: Path) -> Path:
    return tmp_path / "slots"


@pytest.fixture(params=["memory", "process", "redis"])
def anywhere(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Arguments for each backend."""
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
async def tiers(anywhere: dict[str, Any]) -> AsyncIterator[Callable[..., Tiers]]:
    """Makes tiers of the backend at hand, closed after the test."""
    made: list[Tiers] = []

    def make(*tiers: Tier, **options: Any) -> Tiers:
        made.append(Tiers(*tiers, **{**anywhere, **options}))
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
            return max(tier.waiting for tier in (await uploads_of(slots).stats()).values()) == count

        await self.until(so_many)

    async def downloads_waiting(self, slots: SlotManager, count: int) -> None:
        await self.waiting(slots._downloads, "downloads", count)


@pytest.fixture
def look() -> Look:
    return Look()


@pytest.fixture(autouse=True)
def patient_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_answers(monkeypatch)
