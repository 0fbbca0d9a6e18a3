"""`close` is local to the process, `close_everywhere` and `reopen` are the operator's switch."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable

import pytest

from slotwise import Rate, RateLimit, Semaphore, SemaphoreClosed, Tier, Tiers
from tests.contract.conftest import Speak, Url

Make = Callable[..., Semaphore]


# ----------------------------------------------------------------- in this process


async def test_close_closes_every_instance_of_the_name_made_so_far(
    make: Make, speak: Speak
) -> None:
    one, other = make(1), make(1)
    held = await speak.acquire(one)
    waiter = asyncio.create_task(speak.acquire(other))
    await speak.waiting(one, 1)
    await speak.close(one)
    with pytest.raises(SemaphoreClosed) as closed:
        await waiter
    assert closed.value.reason is None
    with pytest.raises(SemaphoreClosed):
        await speak.try_acquire(other)
    assert await speak.locked(other)
    assert await speak.release(other, held) is True


async def test_an_instance_made_later_works_and_the_earlier_stay_closed(
    make: Make, speak: Speak
) -> None:
    earlier = make(2)
    await speak.close(earlier)
    later = make(2)
    held = await speak.acquire(later)
    await speak.close(earlier)  # closing again does no harm, to nobody
    assert await speak.release(later, held) is True
    await speak.release(later, await speak.acquire(later))
    with pytest.raises(SemaphoreClosed):
        await speak.acquire(earlier)


# ---------------------------------------------------------------------- everywhere


async def test_close_everywhere_gives_everybody_the_reason(make: Make, speak: Speak) -> None:
    one, other = make(1), make(1)
    held = await speak.acquire(one)
    waiter = asyncio.create_task(speak.acquire(other))
    await speak.waiting(one, 1)
    await speak.close_everywhere(one, "we move to Oslo: 17 °C")
    with pytest.raises(SemaphoreClosed, match="closed everywhere: we move to Oslo") as closed:
        await waiter
    assert closed.value.reason == "we move to Oslo: 17 °C"
    for semaphore in (one, other, make(1), make(3)):
        for take in (speak.acquire, speak.try_acquire):
            with pytest.raises(SemaphoreClosed) as closed:
                await take(semaphore)
            assert closed.value.reason == "we move to Oslo: 17 °C"
        assert await speak.locked(semaphore)
    stats = await speak.stats(one)
    assert (stats.acquired_slots, stats.waiting) == (1, 0)
    assert (stats.closed, stats.reason) == (True, "we move to Oslo: 17 °C")
    assert await speak.release(other, held) is True
    await speak.reopen(one)


async def test_it_outlives_the_last_holder_and_reopen_undoes_it(make: Make, speak: Speak) -> None:
    semaphore = make(2)
    held = await speak.acquire(semaphore)
    await speak.close_everywhere(semaphore)
    await speak.release(semaphore, held)
    for closed in (semaphore, make(2)):
        with pytest.raises(SemaphoreClosed, match=r"closed everywhere$") as caught:
            await speak.try_acquire(closed)
        assert caught.value.reason is None
    await speak.reopen(make(2))
    stats = await speak.stats(semaphore)
    assert (stats.acquired_slots, stats.max_slots, stats.closed) == (0, 2, False)
    taken = [await speak.acquire(semaphore), await speak.acquire(make(2))]
    assert [each.slot_number for each in taken] == [1, 2]
    assert await speak.try_acquire(semaphore) is None
    for each in taken:
        await speak.release(semaphore, each)


async def test_reopen_does_not_undo_a_local_close(make: Make, speak: Speak) -> None:
    semaphore = make(1)
    await speak.close_everywhere(semaphore, "everywhere")
    await speak.close(semaphore)
    later = make(1)
    with pytest.raises(SemaphoreClosed) as closed:
        await speak.acquire(later)
    assert closed.value.reason == "everywhere"
    await speak.reopen(semaphore)
    with pytest.raises(SemaphoreClosed) as closed:
        await speak.acquire(semaphore)
    assert closed.value.reason is None
    await speak.release(later, await speak.acquire(later))


@pytest.mark.parametrize(
    ("reason", "error"), [(3, TypeError), (b"x", TypeError), ("\ud800", ValueError)]
)
async def test_a_reason_is_text(
    make: Make, speak: Speak, reason: object, error: type[Exception]
) -> None:
    semaphore = make(1)
    with pytest.raises(error):
        await speak.close_everywhere(semaphore, reason)  # type: ignore[arg-type]
    await speak.release(semaphore, await speak.acquire(semaphore))


def test_the_error_keeps_its_reason_when_it_is_pickled() -> None:
    copy = pickle.loads(pickle.dumps(SemaphoreClosed("'x' is closed", reason="why")))
    assert (str(copy), copy.reason) == ("'x' is closed", "why")


# ------------------------------------------------------------------- tiers, rates


async def test_a_rate_is_closed_everywhere_with_a_reason_and_shows_who_waits(
    url: Url, name: str, speak: Speak
) -> None:
    rate, other = (RateLimit(name, Rate(1, per=36000), url=url) for _ in range(2))
    await speak.acquire(rate)
    waiting = asyncio.create_task(speak.acquire(other, label="import"))
    await speak.waiting(rate, 1)
    [waiter] = await speak.say(rate, "waiters")
    assert waiter.label == "import"
    await speak.say(rate, "close_everywhere", "moving house")
    with pytest.raises(SemaphoreClosed, match="moving house"):
        await waiting
    with pytest.raises(SemaphoreClosed, match="moving house"):
        await speak.try_acquire(RateLimit(name, Rate(1, per=36000), url=url))
    assert (await speak.stats(other)).reason == "moving house"
    await speak.say(other, "reopen")
    assert await speak.try_acquire(rate) is None, "what was taken is still gone"


async def test_a_block_of_tiers_closes_them_at_its_end(url: Url, name: str) -> None:
    def made() -> Tiers:
        return Tiers(Tier("all", 1), name=name, url=url)

    def in_a_thread() -> Tiers:
        with made() as tiers, tiers.cm(timeout=0):
            return tiers

    async with made() as tiers, tiers.cm(timeout=0):
        pass
    for closed in (tiers, await asyncio.to_thread(in_a_thread)):
        with pytest.raises(SemaphoreClosed):
            await closed.acquire(timeout=0)
