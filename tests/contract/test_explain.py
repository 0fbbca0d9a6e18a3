"""`explain()`: why somebody waits, the same on every driver."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from slotwise import AcquireTimeout, Limit, Rate, RateLimit, Tier, Tiers
from tests.contract.conftest import Speak, Url

Make = Callable[..., Any]


async def _explain(speak: Speak, limit: Limit, which: object = None) -> Any:
    if speak.sync:
        return await asyncio.to_thread(limit.explain_sync, which)
    return await limit.explain(which)


async def test_a_newcomer_is_told_what_it_would_lack(make_limit: Make, speak: Speak) -> None:
    limit = make_limit(1)
    free = await _explain(speak, limit)
    assert (free.state, free.place, free.lacks, free.estimate) == ("new", None, (), 0.0)
    assert "at once" in str(free)
    acquired = await speak.acquire(limit, label="export")
    waiting = asyncio.ensure_future(limit.acquire())
    await speak.waiting(limit, 1)
    full = await _explain(speak, limit)
    assert (full.state, full.place) == ("new", 2)
    [lack] = full.lacks
    assert (lack.held, lack.value) == (1, 1)
    assert lack.oldest is not None
    assert lack.oldest.acquisition_id == acquired.acquisition_id
    assert f"oldest by {lack.oldest.host}:{os.getpid()} 'export' for " in str(full)
    await speak.release(limit, acquired)
    await limit.release(await waiting)


async def test_holders_waiters_and_strangers_are_told_apart(make_limit: Make, speak: Speak) -> None:
    limit = make_limit(1)
    where = getattr(limit, "tiers", limit)
    acquired = await speak.acquire(limit)
    waiting = [asyncio.ensure_future(limit.acquire())]
    await speak.waiting(limit, 1)
    waiting.append(asyncio.ensure_future(limit.acquire()))
    await speak.waiting(limit, 2)
    held = await _explain(speak, limit, acquired)
    assert (held.state, held.place, held.lacks) == ("holding", None, ())
    assert str(held).startswith("holds slot 1 of ")
    assert (await _explain(speak, limit, "nobody")).state == "unknown"
    second = (await where.waiters())[1]
    told = await _explain(speak, limit, second.acquisition_id)
    assert (told.state, told.place, len(told.lacks)) == ("waiting", 2, 1)
    assert str(told).startswith("second in line for ")
    await speak.release(limit, acquired)
    for each in waiting:
        await limit.release(await each)


async def test_a_newcomer_is_told_that_it_is_closed(make_limit: Make, speak: Speak) -> None:
    limit = make_limit(1)
    await speak.close_everywhere(getattr(limit, "tiers", limit), "upgrade")
    told = await _explain(speak, limit)
    assert (told.state, told.place, told.estimate, told.closed) == ("new", None, None, "upgrade")
    assert str(told).endswith(" is closed: upgrade; newcomers are refused")


async def test_a_path_is_told_which_tier_it_lacks_and_by_which_key() -> None:
    tiers = Tiers(Tier("tenant", 1, keyed=True), Tier("all", 9), name="model-api")
    acme, emca = tiers.at(tenant="acme"), tiers.at(tenant="emca")
    async with acme.cm(label="export"):
        waiting = asyncio.ensure_future(acme.acquire())
        while not await tiers.waiters():
            await asyncio.sleep(0)
        assert str(await emca.explain()) == "a newcomer gets its slots of 'model-api' at once"
        [waiter] = await tiers.waiters()
        told = await tiers.explain(waiter.acquisition_id)
        [lack] = told.lacks
        assert (lack.tier, lack.key, lack.held, lack.value) == ("tenant", "acme", 1, 1)
        assert str(told).startswith(
            "first in line for 'model-api'; lacks tier tenant 'acme' (1 of 1 held, oldest by "
        )
    await acme.release(await waiting)


async def test_a_rate_is_explained_in_words_of_rates() -> None:
    rate = RateLimit(None, Rate(2, per=60, burst=2))
    for _ in range(2):
        acquired = await rate.acquire()
    told = await rate.explain()
    assert str(told).endswith(
        " first in line for a private rate; 0 left of a burst of 2; about 30 s to go"
    )
    [lack] = told.lacks
    assert (lack.tier, lack.held, lack.value, lack.is_rate) == (None, 2, 2, True)
    acquired.settle(cost=4)
    assert "; 3 in debt, with a burst of 2; " in str(await rate.explain())
    tiers = Tiers(Tier("all", 9), Tier("tokens", rate=Rate(1, per=60)), name="with-a-rate")
    await tiers.acquire()
    told = await tiers.at().explain()
    assert "; lacks tier tokens (0 left of a burst of 1); " in str(told)


async def test_what_is_left_of_a_rate_is_not_for_newcomers_while_somebody_waits(
    url: Url, name: str, speak: Speak
) -> None:
    tokens = Tier("tokens", rate=Rate(1, per=3600, burst=100))
    tiers = Tiers(Tier("user", 5, keyed=True), tokens, name=name, url=url)
    await tiers.acquire(user="ann", tokens=63)
    waiting = asyncio.ensure_future(tiers.acquire(user="bob", tokens=50))
    async with asyncio.timeout(30):
        while not await tiers.waiters():
            await asyncio.sleep(0.001)
    newcomer = tiers.at(user="new")
    told = await _explain(speak, newcomer)
    assert (told.state, told.place) == ("new", 2)
    [lack] = told.lacks
    assert (lack.tier, lack.held, lack.value, lack.need) == ("tokens", 63, 100, 1)
    assert await speak.locked(newcomer)
    [waiter] = await tiers.waiters()
    told = await _explain(speak, newcomer, waiter.acquisition_id)
    assert "lacks tier tokens (37 left of a burst of 100, 50 needed)" in str(told)
    waiting.cancel()
    await asyncio.wait([waiting])


@pytest.mark.parametrize("timeout", [0, 0.05])
async def test_a_timeout_names_the_oldest_holders(make: Make, speak: Speak, timeout: float) -> None:
    semaphore, began = make(4), time.monotonic()
    for label in ("export", "import 'b'", "report", "fourth"):
        await speak.acquire(semaphore, label=label)
    with pytest.raises(AcquireTimeout) as raised:
        await speak.acquire(semaphore, timeout=timeout)
    told = re.search(r"4 of 4 held \(oldest: (.*)\), 0 others waiting", str(raised.value))
    assert told is not None, raised.value
    here = f"{socket.gethostname()}:{os.getpid()}"
    named = [re.fullmatch(r"(.*), (\d+) s", each) for each in told[1].split("; ")]
    who = [each and each[1] for each in named]
    assert who == [f"{here} 'export'", f"{here} \"import 'b'\"", f"{here} 'report'"]
    assert all(each and int(each[2]) <= time.monotonic() - began + 1 for each in named)
    for holder in await speak.holders(semaphore):
        await speak.release(semaphore, holder.acquisition_id)
