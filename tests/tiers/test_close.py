"""`close` is local to the process, `close_everywhere` and `reopen` are the operator's switch.

For Tiers and SlotManager, on every backend; for semaphores see tests/contract.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable
from typing import Any

import pytest

from slotwise import SemaphoreClosed, SlotManager, SlotManagerClosed, Tier, Tiers

_names = itertools.count(1)


class Speak:
    """The verbs of tiers, asynchronous or through threads."""

    def __init__(self, sync: bool) -> None:
        self._sync = sync

    def __getattr__(self, verb: str) -> Any:
        async def say(tiers: Any, *args: Any, **options: Any) -> Any:
            if self._sync:
                return await asyncio.to_thread(getattr(tiers, f"{verb}_sync"), *args, **options)
            return await getattr(tiers, verb)(*args, **options)

        return say


@pytest.fixture(params=["async", "sync"])
def speak(request: pytest.FixtureRequest) -> Speak:
    return Speak(sync=request.param == "sync")


@pytest.fixture
def make(anywhere: dict[str, Any]) -> Any:
    """Makes tiers of one name."""
    name = f"closing-{os.getpid()}-{next(_names)}"

    def make(*tiers: Tier, **options: Any) -> Tiers:
        tiers = tiers or (Tier("user", 1, keyed=True), Tier("all", 2))
        return Tiers(*tiers, **{**anywhere, "name": name, **options})

    return make


async def test_reopen_opens_keys_that_a_local_close_has_emptied(make, speak):
    tiers = make()
    held = await speak.acquire(tiers, user="a")
    await speak.close_everywhere(tiers, "everywhere")
    await speak.release(tiers, held)
    await speak.close(tiers)
    later = make()
    await speak.reopen(tiers)
    await speak.release(later, await speak.acquire(later, user="a", timeout=30))
    await speak.close(later)


@pytest.mark.parametrize("wide", [(), (Tier("all", 2),), (Tier("all", 0),)])
async def test_close_everywhere_fails_those_who_wait_for_a_key(make, speak, look, wide):
    user = Tier("user", 1, keyed=True)
    tiers, other = make(user, *wide), make(user, *wide)
    held = await speak.acquire(tiers, user="a")
    waiter = asyncio.create_task(speak.acquire(other, user="a"))
    await look.waiting(other, "user", 1)
    await speak.close_everywhere(tiers, "stocktaking")
    with pytest.raises(SemaphoreClosed) as closed:
        await asyncio.wait_for(waiter, 30)
    assert closed.value.reason == "stocktaking"
    for refused in (tiers, other, make(user, *wide)):
        for key in "ab":
            for verb in (speak.acquire, speak.try_acquire):
                with pytest.raises(SemaphoreClosed) as closed:
                    await asyncio.wait_for(verb(refused, user=key), 30)
                assert closed.value.reason == "stocktaking"
    assert await speak.release(tiers, held) is True
    await speak.reopen(make(user, *wide))
    for key in "ab":
        acquired = await speak.acquire(other, user=key, timeout=0)
        assert await speak.release(other, acquired) is True
    await speak.close(tiers)


async def test_a_manager_is_closed_everywhere_and_reopened(anywhere, speak):
    name = f"managers-{os.getpid()}-{next(_names)}"
    slots = SlotManager(**{**anywhere, "name": name})
    await speak.close_everywhere(slots, "maintenance")
    for take in (slots.acquire_download_slot(), slots.acquire_upload_slot("a")):
        with pytest.raises(SlotManagerClosed, match="closed: maintenance") as closed:
            await take
        assert closed.value.reason == "maintenance"
    await speak.reopen(slots)
    async with slots.download(), slots.upload("a"):
        pass
    await slots.close()


class ShopClosed(SemaphoreClosed):
    """What an application raises for its own closed tiers."""


@pytest.mark.parametrize("verb", ["close", "close_everywhere"])
async def test_every_call_on_closed_tiers_raises_their_own_error(
    tiers: Callable[..., Tiers], verb: str
) -> None:
    limits = tiers(Tier("customer", 2, keyed=True), Tier("all", 3), closed_error=ShopClosed)
    await limits.acquire(customer="ann")
    await getattr(limits, verb)()
    calls = {
        "acquire": lambda: limits.acquire(customer="ann"),
        "try": lambda: limits.try_acquire(customer="ann"),
        "pause": lambda: limits.pause(1),
        "pause a key": lambda: limits.pause(1, customer="ann"),
        "pause a path": lambda: limits.at(customer="ann").pause(1),
        "resize": lambda: limits.resize("all", 5),
        "resize a key": lambda: limits.resize("customer", 5, "ann"),
    }
    raised = {}
    for name, call in calls.items():
        try:
            await call()
        except SemaphoreClosed as error:
            raised[name] = type(error)
    assert raised == dict.fromkeys(calls, ShopClosed)
    if verb == "close_everywhere":
        await limits.reopen()


async def test_managers_of_one_name_are_closed_together(anywhere, look):
    name = f"managers-{os.getpid()}-{next(_names)}"
    options = {**anywhere, "name": name, "max_downloads": 1}
    one, other = SlotManager(**options), SlotManager(**options)
    held = await one.acquire_download_slot()
    waiting = asyncio.create_task(other.acquire_download_slot())
    await look.downloads_waiting(other, 1)
    await one.close()
    with pytest.raises(SlotManagerClosed):
        await waiting
    assert await one.release_download_slot(held)
    async with SlotManager(**options) as later, later.download():
        pass
    await other.close()
