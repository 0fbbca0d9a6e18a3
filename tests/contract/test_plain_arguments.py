"""Members of enums and other subclasses stand for their number or text, on every driver.

And what no driver takes is refused in the same words, before anything is taken.
"""

from __future__ import annotations

import asyncio
import copy
import enum
import math
import pickle
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from slotwise import (
    Adaptive,
    Limit,
    Rate,
    RateLimit,
    Semaphore,
    SlotManager,
    Tier,
    Tiers,
    WouldBlockLoop,
    semaphore,
)
from tests.contract.conftest import Speak

Make = Callable[..., Semaphore]
MakeLimit = Callable[..., Limit]


class Size(enum.IntEnum):
    TWO = 2


class Text(str, enum.Enum):  # noqa: UP042 - formatted as its name, where a StrEnum is its value
    """Texts that are not what format() makes of them."""

    LABEL = "import"
    REASON = "moving house"
    TENANT = "acme"


@pytest.fixture(params=["memory", "process", "redis"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "process":
        return f"process://{request.getfixturevalue('tmp_path')}/slots"
    return request.getfixturevalue("server").url if request.param == "redis" else "memory://"


async def test_numbers_of_an_enum_are_plain_numbers(make: Make, speak: Speak) -> None:
    limit = make(Size.TWO)
    assert type(limit.value) is int
    held = await speak.acquire(limit, Size.TWO)
    assert await speak.release(limit, held) is True
    await speak.resize(limit, 5)
    await speak.resize(limit, Size.TWO)
    stats = await speak.stats(limit)
    assert (type(stats.max_slots), stats.max_slots) == (int, 2)


async def test_an_adaptive_value_is_frozen_at_a_number_of_an_enum(make: Make, speak: Speak) -> None:
    limit: Any = make(Adaptive(min=1, start=1, max=9))
    await speak.say(limit, "freeze", Size.TWO)
    assert (await speak.stats(limit)).max_slots == 2


async def test_numbers_and_texts_of_an_enum_are_plain_in_tiers(url: str, name: str) -> None:
    tiers = Tiers(
        Tier("tenant", Size.TWO, keyed=True),
        Tier("tokens", rate=Rate(100, per=3600)),
        Tier("found", Adaptive(min=1, start=4, max=9)),
        name=name,
        url=url,
    )
    assert type(tiers.tiers[0].value) is int
    held = await tiers.acquire({"tenant": Size.TWO}, tenant=Text.TENANT, tokens=Size.TWO)
    [holder] = await tiers.holders()
    assert [(type(key), key) for key in holder.keys.values()] == [(str, "acme")]
    assert (await tiers.stats())["tenant"].keys["acme"].active == 2
    assert await tiers.try_acquire(tenant="acme") is None
    await tiers.resize("tenant", Size.TWO)
    await tiers.resize("tenant", Size.TWO, Text.TENANT)
    await tiers.freeze("found", Size.TWO)
    assert (await tiers.stats())["found"].value == 2
    assert await tiers.release(held) is True
    await tiers.pause(60, tenant=Text.TENANT)
    assert await tiers.at(tenant="acme").try_acquire() is None
    await tiers.reopen()
    await tiers.close()


async def test_a_name_a_label_and_a_reason_of_an_enum_are_their_text(url: str, name: str) -> None:
    class Names(str, enum.Enum):  # noqa: UP042
        OWN = name

    limit, same = semaphore(Names.OWN, 1, url=url), semaphore(name, 1, url=url)
    held = await limit.acquire(label=Text.LABEL)
    assert await same.try_acquire() is None
    [holder] = await same.holders()
    assert (type(holder.label), holder.label) == (str, "import")
    assert (type(limit.name), limit.name) == (str, name)
    assert name in repr(limit)
    await limit.release(held)
    await limit.close_everywhere(Text.REASON)
    reason = (await same.stats()).reason
    assert (type(reason), reason) == (str, "moving house")
    await limit.reopen()


@pytest.mark.parametrize("value", [2**53 + 1, 10**30])
async def test_a_value_that_some_driver_cannot_store_is_refused_by_all(
    url: str, name: str, value: int
) -> None:
    too_much = rf"must be at most {2**53}, not {value}$"
    limit = semaphore(name, 2, url=url)
    tiers = Tiers(Tier("all", 2), Tier("own", lambda _: value, keyed=True), name=name, url=url)
    with pytest.raises(ValueError, match=f"^value {too_much}"):
        semaphore(name, value, url=url)
    with pytest.raises(ValueError, match=f"^value {too_much}"):
        await limit.resize(value)
    with pytest.raises(ValueError, match=f"^value {too_much}"):
        await tiers.resize("all", value)
    with pytest.raises(ValueError, match=f"tier 'own' for 'key' {too_much}"):
        await tiers.acquire(own="key")
    with pytest.raises(ValueError, match=f"the value of tier 'all' {too_much}"):
        Tier("all", value)
    assert (await limit.stats()).max_slots == (await tiers.stats())["all"].value == 2
    await tiers.close()


async def test_settling_nothing_or_what_is_no_rate_is_an_error(url: str, name: str) -> None:
    tiers = Tiers(Tier("all", 2), Tier("tokens", rate=Rate(9, per=3600)), name=name, url=url)
    plain = Tiers(Tier("all", 2), name=f"{name}-plain", url=url)
    rate = RateLimit(f"{name}-rate", Rate(9, per=3600), url=url)
    for acquired in (await tiers.acquire(), await rate.acquire(), await plain.acquire()):
        with pytest.raises(TypeError, match=r"settle\(\) takes the actual costs"):
            await acquired.settle()
        with pytest.raises(TypeError, match="'nonsense' is not a rate of the"):
            await acquired.settle(nonsense=1)
    with pytest.raises(TypeError, match=r"settle\(\) takes the actual costs"):
        await tiers.settle("some-id")
    for each in (tiers, plain, rate):
        await each.close()


@pytest.mark.parametrize("wrong", [None, True, "1", b"1", -1, math.nan, math.inf])
async def test_wrong_arguments_about_keys_are_errors(url: str, name: str, wrong: Any) -> None:
    tiers = Tiers(Tier("user", 2, keyed=True), name=name, url=url)
    async with tiers.cm(user="a"):
        pass
    for call in (tiers.forget_idle, tiers.forget_idle_sync):
        with pytest.raises((TypeError, ValueError), match="older_than must be"):
            await _done(call, "user", wrong)
        if wrong is not None:
            with pytest.raises((TypeError, ValueError), match="keep_at_most must be"):
                await _done(call, "user", 0, wrong)
    for call in (tiers.busiest, tiers.busiest_sync):
        with pytest.raises((TypeError, ValueError), match="n must be"):
            await _done(call, "user", wrong)
    assert "a" in (await tiers.stats())["user"].keys
    await tiers.close()


async def _done(call: Callable[..., Any], *args: Any) -> None:
    result = call(*args) if asyncio.iscoroutinefunction(call) else asyncio.to_thread(call, *args)
    await result


async def test_explain_refuses_what_is_no_id(make_limit: MakeLimit, speak: Speak) -> None:
    wrong: Any
    for wrong in (1, b"id", ["id"]):
        with pytest.raises(TypeError, match="an acquisition_id or an AcquisitionResult is needed"):
            await speak.say(make_limit(1), "explain", wrong)


async def test_a_block_in_a_running_loop_is_refused_in_the_same_words(
    make_limit: MakeLimit,
) -> None:
    limit = make_limit(1)
    for block in (limit, limit.cm()):
        with pytest.raises(WouldBlockLoop, match=r"^'with' would block the event loop"), block:
            pass
    assert await limit.locked() is False


async def test_an_estimate_is_about_the_value_in_use(make: Make, speak: Speak) -> None:
    held = await speak.acquire(make(2))
    other = make(1)
    assert await speak.say(other, "estimate") == 0.0, "one of two is free"
    assert (await speak.say(other, "explain")).state == "new"
    with pytest.raises(ValueError, match=r"3 slots requested of .*, which has 2"):
        await speak.say(other, "estimate", 3)
    await speak.release(other, held)


async def test_nothing_is_expected_of_a_rate_that_this_process_closed(url: str, name: str) -> None:
    rate = RateLimit(name, Rate(2, per=3600), url=url)
    assert await rate.estimate() == 0.0
    await rate.close()
    assert await rate.estimate() is None
    assert await rate.locked() is True


async def test_a_manager_takes_a_user_of_an_enum_and_refuses_what_is_no_text(
    url: str, name: str
) -> None:
    async with SlotManager(name=name, url=url, cleanup_interval=0) as slots:
        async with slots.upload(Text.TENANT):
            with pytest.raises(TimeoutError):
                await slots.acquire_upload_slot("acme", timeout=0)
        for call in (slots.upload, slots.acquire_upload_slot_sync):
            with pytest.raises(ValueError, match="username must be text"):
                call("\ud800")


async def test_statistics_can_be_pickled_and_copied(url: str, name: str) -> None:
    tiers = Tiers(Tier("user", 2, keyed=True), Tier("all", 2), name=name, url=url)
    async with tiers.cm(user="a"):
        stats = await tiers.stats()
        claimants = await tiers.holders()
    for shown in (stats, await tiers.at(user="a").stats(), claimants):
        assert pickle.loads(pickle.dumps(shown)) == copy.deepcopy(shown) == shown
    assert asdict(stats["user"])["keys"].keys() == {"a"}
    await tiers.close()
