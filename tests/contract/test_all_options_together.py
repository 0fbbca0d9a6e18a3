"""Dice over all verbs and options of a limit, on every driver, against a naive model.

Each step is one call of a limit. Then the driver has to show exactly the holders and the queue of
the model. Options are tested alone elsewhere: here it is their combinations that count.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from slotwise import (
    AcquireTimeout,
    AcquisitionResult,
    LimitFull,
    RedisConfig,
    Semaphore,
    SemaphoreClosed,
    Tier,
    Tiers,
    semaphore,
)
from tests._effort import seeds
from tests.contract.conftest import Url

MOST_WAITING = 4
STEPS = 60
LONG = 1000  # seconds: far more than a test takes


@dataclass
class Request:
    """One that was made: what it asked for, and what came of it."""

    label: str
    slots: int
    priority: float
    task: asyncio.Task[AcquisitionResult]
    leave: Callable[[AcquisitionResult], Awaitable[object]]


@dataclass
class Model:
    """The rules, in the most obvious way."""

    value: int
    holders: list[Request] = field(default_factory=list)  # the oldest first
    queue: list[Request] = field(default_factory=list)
    is_paused: bool = False
    is_closed: bool = False

    @property
    def free(self) -> int:
        return self.value - sum(holder.slots for holder in self.holders)

    def is_served_at_once(self, slots: int, priority: float) -> bool:
        is_first = all(priority > other.priority for other in self.queue)
        return is_first and slots <= self.free and not self.is_paused

    def enter(self, request: Request) -> None:
        ahead = [other for other in self.queue if other.priority >= request.priority]
        self.queue.insert(len(ahead), request)
        self.grant()

    def grant(self) -> None:
        while self.queue and self.queue[0].slots <= self.free and not self.is_paused:
            self.holders.append(self.queue.pop(0))

    def replace(self, slots: int) -> list[Request]:
        """Whom a request of so many slots replaces, the oldest first."""
        replaced = []
        while self.free < slots:
            replaced.append(self.holders.pop(0))
        return replaced


class Driver:
    """Two objects of one limit, in which the model's steps are taken by turns."""

    def __init__(self, dice: random.Random, kind: str, name: str, where: str | RedisConfig) -> None:
        self.dice = dice
        self.is_semaphore = kind == "semaphore"
        self.limits: list[Any] = []
        for _ in range(2):
            if self.is_semaphore:
                self.limits.append(semaphore(name, 3, url=where, max_waiting=MOST_WAITING))
            else:
                tiers = Tier("tenant", 3, keyed=True), Tier("all", 6)
                made = Tiers(*tiers, url=where, name=name, max_waiting=MOST_WAITING)
                self.limits.append(made.at(tenant="acme"))

    @property
    def limit(self) -> Any:
        return self.dice.choice(self.limits)

    @property
    def control(self) -> Any:
        return self.limit if self.is_semaphore else self.limit.tiers

    async def say(self, of: Any, verb: str, *args: Any, **options: Any) -> Any:
        """Call a coroutine, or its twin in a thread."""
        if self.dice.random() < 0.3:
            return await asyncio.to_thread(getattr(of, f"{verb}_sync"), *args, **options)
        return await getattr(of, verb)(*args, **options)

    async def resize(self, value: int) -> None:
        await self.say(self.control, "resize", *([] if self.is_semaphore else ["tenant"]), value)


class Roll:
    """One run: the dice, the driver and the model."""

    def __init__(self, dice: random.Random, driver: Driver) -> None:
        self.dice, self.driver, self.model = dice, driver, Model(3)
        self._labels = 0

    async def step(self) -> None:
        steps = [self.wait] * 6 + [self.attempt] * 3 + [self.release] * 6 + [self.cancel] * 2
        steps += [self.kick, self.pause, self.close, self.reopen, self.reopen, self.resize]
        steps += [self.replace] * 2 if self.driver.is_semaphore else []
        await self.dice.choice(steps)()
        await self.agree()

    def _arguments(self) -> tuple[int, float, str]:
        self._labels += 1
        slots = self.dice.choice([1, 1, 1, 2, 3])
        return slots, self.dice.choice([0, 0, LONG, -LONG]), f"request {self._labels}"

    def _refusal(self, slots: int, priority: float) -> type[Exception] | None:
        model = self.model
        if model.is_closed:
            return SemaphoreClosed
        if slots > model.value:
            return ValueError
        if model.is_served_at_once(slots, priority):
            return None
        return LimitFull if len(model.queue) >= MOST_WAITING else None

    def _begin(self, slots: int, priority: float, label: str, **options: Any) -> Request:
        limit = self.driver.limit
        options |= {"label": label, "priority": priority}
        if self.dice.random() < 0.5:
            block = limit.cm(slots, **options)
            task = asyncio.create_task(block.__aenter__())
            return Request(
                label, slots, priority, task, lambda _: block.__aexit__(None, None, None)
            )
        task = asyncio.create_task(limit.acquire(slots, **options))

        async def leave(acquired: AcquisitionResult) -> None:
            assert await self.driver.say(self.driver.limit, "release", acquired) is True
            assert await self.driver.say(self.driver.limit, "release", acquired) is False

        return Request(label, slots, priority, task, leave)

    async def wait(self) -> None:
        slots, priority, label = self._arguments()
        refusal = self._refusal(slots, priority)
        request = self._begin(slots, priority, label)
        if refusal is None:
            self.model.enter(request)
        else:
            with pytest.raises(refusal):
                await request.task

    async def attempt(self) -> None:
        """Acquire without waiting, in one of two ways."""
        slots, priority, label = self._arguments()
        refusal = self._refusal(slots, priority)
        options = {"label": label, "priority": priority}
        limit, is_try = self.driver.limit, self.dice.random() < 0.5
        if refusal is LimitFull:
            refusal = None  # which is for those who would wait
        verb = "try_acquire" if is_try else "acquire"
        options |= {} if is_try else {"timeout": 0}
        if refusal is not None:
            with pytest.raises(refusal):
                await self.driver.say(limit, verb, slots, **options)
        elif self.model.is_served_at_once(slots, priority):
            acquired = await self.driver.say(limit, verb, slots, **options)
            done: asyncio.Future[AcquisitionResult] = asyncio.get_running_loop().create_future()
            done.set_result(acquired)
            request = Request(label, slots, priority, done, limit.release)  # type: ignore[arg-type]
            self.model.holders.append(request)
        elif is_try:
            assert await self.driver.say(limit, verb, slots, **options) is None
        else:
            with pytest.raises(AcquireTimeout):
                await self.driver.say(limit, verb, slots, **options)

    async def release(self) -> None:
        if self.model.holders:
            holder = self.model.holders.pop(self.dice.randrange(len(self.model.holders)))
            await holder.leave(await holder.task)
            self.model.grant()

    async def cancel(self) -> None:
        if self.model.queue:
            waiter = self.model.queue.pop(self.dice.randrange(len(self.model.queue)))
            waiter.task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter.task
            self.model.grant()

    async def kick(self) -> None:
        if self.model.holders:
            holder = self.model.holders.pop(self.dice.randrange(len(self.model.holders)))
            acquired = await holder.task
            assert await self.driver.say(self.driver.control, "kick", acquired) is True
            assert await self.driver.say(self.driver.control, "kick", acquired) is False
            await self._is_lost(acquired)
            self.model.grant()

    async def replace(self) -> None:
        """Take the slots of the oldest holders, while nobody waits for them."""
        slots, _, label = self._arguments()
        if self.model.queue or self.model.is_paused or self.model.is_closed:
            return
        if slots > self.model.value or self.model.free < 0:
            return
        replaced = self.model.replace(slots)
        request = self._begin(slots, 0, label, on_full="replace")
        await request.task
        self.model.holders.append(request)
        for holder in replaced:
            await self._is_lost(await holder.task)

    async def _is_lost(self, acquired: AcquisitionResult) -> None:
        async with asyncio.timeout(30):
            await acquired.lost
        assert await self.driver.say(self.driver.limit, "release", acquired) is False

    async def resize(self) -> None:
        value = self.dice.randint(1, 5)
        if self.model.is_closed:
            with pytest.raises(SemaphoreClosed):
                await self.driver.resize(value)
            return
        await self.driver.resize(value)
        self.model.value = value
        await self._fail([each for each in self.model.queue if each.slots > value], ValueError)
        self.model.grant()

    async def pause(self) -> None:
        if not self.model.is_closed:
            await self.driver.say(self.driver.limit, "pause", LONG)
            self.model.is_paused = True

    async def close(self) -> None:
        await self.driver.say(self.driver.control, "close_everywhere", "the dice say so")
        self.model.is_closed = True
        await self._fail([*self.model.queue], SemaphoreClosed)

    async def reopen(self) -> None:
        await self.driver.say(self.driver.control, "reopen")
        self.model.is_closed = self.model.is_paused = False
        self.model.grant()

    async def _fail(self, requests: list[Request], why: type[Exception]) -> None:
        for request in requests:
            self.model.queue.remove(request)
            with pytest.raises(why):
                await request.task

    async def agree(self) -> None:
        """Return when the driver shows what the model has; raise if it never does."""
        expected: tuple[object, ...] = ()
        shown: tuple[object, ...] = (None,)
        try:
            async with asyncio.timeout(30):
                while shown != expected:
                    await asyncio.sleep(0)
                    expected, shown = self._expected(), await self._shown()
        except TimeoutError:
            assert shown == expected
        for holder in self.model.holders:
            async with asyncio.timeout(30):
                assert not (await asyncio.shield(holder.task)).lost.is_set()
        assert not any(waiter.task.done() for waiter in self.model.queue)

    def _expected(self) -> tuple[object, ...]:
        model = self.model
        is_locked = bool(model.queue) or model.free <= 0 or model.is_paused or model.is_closed
        return (
            {holder.label: holder.slots for holder in model.holders},
            # Those of tiers are listed in the order of arrival: keys have queues of their own.
            [waiter.label for waiter in sorted(model.queue, key=self._place)],
            (sum(holder.slots for holder in model.holders), len(model.queue)),
            (is_locked, model.is_closed),
        )

    def _place(self, waiter: Request) -> int:
        return 0 if self.driver.is_semaphore else int(waiter.label.removeprefix("request "))

    async def _shown(self) -> tuple[object, ...]:
        driver = self.driver
        holders = await driver.say(driver.control, "holders")
        waiters = await driver.say(driver.control, "waiters")
        stats = await driver.say(driver.limit, "stats")
        return (
            {holder.label: holder.slots for holder in holders},
            [waiter.label for waiter in waiters],
            (stats.acquired_slots, stats.waiting),
            (bool(await driver.say(driver.limit, "locked")), stats.closed),
        )

    async def end(self) -> None:
        """Leave nothing behind."""
        await self.reopen()
        while self.model.holders or self.model.queue:
            await self.release()
            await self.agree()
        limit = self.driver.limit
        assert (await limit.stats()).acquired_slots == 0


@pytest.mark.parametrize("kind", ["semaphore", "tiers"])
@pytest.mark.parametrize("seed", seeds(3, 8))
async def test_every_driver_does_what_the_model_does(
    kind: str, url: Url, seed: int, name: str
) -> None:
    dice = random.Random(seed)
    driver = Driver(dice, kind, name, url)
    assert isinstance(driver.control, Semaphore if kind == "semaphore" else Tiers)
    roll = Roll(dice, driver)
    await roll.agree()
    for _ in range(STEPS):
        await roll.step()
    await roll.end()
