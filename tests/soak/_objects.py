"""What the workers of a soak share: one object of each kind, with the times of a soak."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.soak._history import Recorder

from slotwise import AcquisitionResult, ProcessSemaphore, RedisConfig, RedisSemaphore, Tier, Tiers

INTERVAL, PING = 3.0, 0.75
REDIS, TIERS, FILES = "redis", "tiers", "process"
TENANTS = ("a", "b", "c")
# By object, the limits that it has and their values.
LIMITS = {
    REDIS: {REDIS: 3},
    TIERS: {"tiers": 3, **{f"tenant {tenant}": 2 for tenant in TENANTS}},
    FILES: {FILES: 3},
}


@dataclass(frozen=True)
class Wish:
    """Something to ask for, and how."""

    object: str
    limits: tuple[str, ...]
    slots: int
    take: Callable[[float | None], Awaitable[AcquisitionResult]]
    release: Callable[[AcquisitionResult], Awaitable[bool]]


class Objects:
    """The objects of one process."""

    def __init__(self, url: str, folder: Path) -> None:
        config = RedisConfig(url)
        self._tiers = Tiers(
            Tier("tenant", 2, keyed=True),
            Tier("all", 3),
            name=TIERS,
            url=config,
            heartbeat_max_interval=INTERVAL,
            ping_interval=PING,
        )
        self.semaphores = {
            REDIS: RedisSemaphore(
                3,
                name=REDIS,
                config=config,
                heartbeat_max_interval=INTERVAL,
                ping_interval=PING,
            ),
            FILES: ProcessSemaphore(3, name=FILES, directory=folder),
        }

    def wish(self, name: str, dice: Random) -> Wish:
        """One of the things that can be asked of an object; sometimes of more than one slot."""
        if name == TIERS:
            tenant = dice.choice(TENANTS)
            return Wish(
                name,
                ("tiers", f"tenant {tenant}"),
                1,
                lambda timeout: self._tiers.acquire(timeout=timeout, tenant=tenant),
                self._tiers.release,
            )
        semaphore = self.semaphores[name]
        count = dice.choice((1, 1, 1, 2))
        return Wish(
            name,
            (name,),
            count,
            lambda timeout: semaphore.acquire(count, timeout=timeout),
            semaphore.release,
        )

    async def in_use(self) -> list[str]:
        """What is held or waited for, by anybody, in words."""
        counts = [
            (name, stats.acquired_slots, stats.waiting)
            for name, semaphore in self.semaphores.items()
            for stats in [await semaphore.stats()]
        ]
        counts += [
            (f"tier {name}", tier.active, tier.waiting)
            for name, tier in (await self._tiers.stats()).items()
        ]
        return [
            f"{name}: {held} held, {waiting} waiting"
            for name, held, waiting in counts
            if held or waiting
        ]


def write_objects(recorder: Recorder) -> None:
    for name, limits in LIMITS.items():
        interval = None if name == FILES else INTERVAL
        recorder.write("object", object=name, limits=limits, interval=interval, ping=PING)
