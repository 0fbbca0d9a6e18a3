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
    Tier,
    Tiers,
    semaphore,
)
from slotwise.redis import RedisConfig
from tests.contract.conftest import Speak, Url

MakeLimit = Callable[..., Limit]


class Size(enum.IntEnum):
    TWO = 2


class Text(str, enum.Enum):  # noqa: UP042 - formatted as its name, where a StrEnum is its value
    """Texts that are not what format() makes of them."""

    LABEL = "import"
    REASON = "moving house"
    TENANT = "acme"


async def test_numbers_and_texts_of_an_enum_are_plain_in_tiers(url: Url, name: str) -> None:
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


async def test_a_name_a_label_and_a_reason_of_an_enum_are_their_text(url: Url, name: str) -> None:
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
    url: Url, name: str, value: int
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


async def test_settling_nothing_or_what_is_no_rate_is_an_error(url: Url, name: str) -> None:
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
async def test_wrong_arguments_about_keys_are_errors(url: Url, name: str, wrong: Any) -> None:
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


async def test_nothing_is_expected_of_a_rate_that_this_process_closed(url: Url, name: str) -> None:
    rate = RateLimit(name, Rate(2, per=3600), url=url)
    assert await rate.estimate() == 0.0
    await rate.close()
    assert await rate.estimate() is None
    assert await rate.locked() is True


async def test_statistics_can_be_pickled_and_copied(url: Url, name: str) -> None:
    tiers = Tiers(Tier("user", 2, keyed=True), Tier("all", 2), name=name, url=url)
    async with tiers.cm(user="a"):
        stats = await tiers.stats()
        claimants = await tiers.holders()
    for shown in (stats, await tiers.at(user="a").stats(), claimants):
        assert pickle.loads(pickle.dumps(shown)) == copy.deepcopy(shown) == shown
    assert asdict(stats["user"])["keys"].keys() == {"a"}
    await tiers.close()


# ------------------------------------------------------------------------ bounds


@pytest.mark.parametrize(
    "wrong",
    [
        {"ttl": 1e15},
        {"ttl": 10**400},
        {"max_acquire_time": 1e15},
        {"name": "lone \ud800 surrogate"},
        {"name": "\udcff"},
    ],
)
def test_what_no_driver_could_keep_is_a_value_error(
    driver: Callable[..., Semaphore], wrong: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        driver(1, **{"name": "s", **wrong})


def test_neither_could_tiers_nor_a_namespace() -> None:
    with pytest.raises(ValueError, match="ttl must be at most"):
        Tiers(Tier("t", 1), ttl=1e15)
    with pytest.raises(ValueError, match="name must be text"):
        Tiers(Tier("t", 1), name="\udc80")
    with pytest.raises(ValueError, match="namespace must be text"):
        RedisConfig(namespace="\udc80")


async def test_a_key_of_tiers_that_is_not_text_is_a_value_error(url: Url, name: str) -> None:
    tiers = Tiers(Tier("user", 1, keyed=True), url=url, name=name)
    for given in (lambda: tiers.acquire(user="\ud800"), lambda: tiers.resize("user", 2, "\ud800")):
        with pytest.raises(ValueError, match="the key of tier 'user' must be text"):
            await given()
    with pytest.raises(ValueError, match="acquisition_id must be text"):
        await tiers.release("\ud800")


async def test_a_timeout_that_no_clock_could_keep_is_a_value_error(
    make: Callable[..., Semaphore], speak: Speak
) -> None:
    with pytest.raises(ValueError, match="timeout must be at most 1e"):
        await speak.acquire(make(value=1), timeout=1e15)


async def test_the_longest_ttl_and_a_name_of_any_text_work(
    driver: Callable[..., Semaphore], name: str, speak: Speak
) -> None:
    semaphore = driver(1, name=f"{name} Grüße \U0001f980", ttl=1e9)
    acquired = await speak.acquire(semaphore, timeout=1e9)
    assert await speak.release(semaphore, acquired) is True
