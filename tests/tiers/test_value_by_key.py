"""Tiers whose value is a function of the key."""

from __future__ import annotations

import pickle

import pytest

from slotwise import AcquireTimeout, Tier, Tiers, ValueConflict

PLANS = {"free": 1, "pro": 3, "all you can eat": 0}


def plan_of(tenant: str) -> int:
    return PLANS[tenant]


async def test_each_key_has_the_value_that_the_function_returns(anywhere):
    async with Tiers(Tier("tenant", plan_of, keyed=True), Tier("all", 9), **anywhere) as limits:
        held = [await limits.acquire(tenant="pro", timeout=0) for _ in range(3)]
        with pytest.raises(AcquireTimeout, match="tenant 'pro'"):
            await limits.acquire(tenant="pro", timeout=0)
        await limits.acquire(tenant="free", timeout=0)
        assert await limits.try_acquire(tenant="free") is None
        for _ in range(4):
            await limits.acquire(tenant="all you can eat", timeout=0)
        stats = (await limits.stats())["tenant"]
        assert {key: each.value for key, each in stats.keys.items()} == PLANS
        assert stats.value == 0
        for each in held:
            await limits.release(each)
        with pytest.raises(ValueError, match="has 3"):
            await limits.acquire({"tenant": 4}, tenant="pro")


async def test_the_function_is_asked_when_a_key_appears_and_a_resize_wins(anywhere):
    asked = []

    def value_of(tenant: str) -> int:
        asked.append(tenant)
        return 1

    async with Tiers(Tier("tenant", value_of, keyed=True), max_idle_keys=1, **anywhere) as limits:
        for _ in range(3):
            async with limits.cm(tenant="a"):
                assert await limits.try_acquire(tenant="a") is None
        assert asked == ["a"]
        for tenant in ("b", "c"):
            async with limits.cm(tenant=tenant):
                pass
        async with limits.cm(tenant="a"):  # it was forgotten
            pass
        assert asked == ["a", "b", "c", "a"]
        await limits.resize("tenant", 2, key="b")
        async with limits.cm(tenant="b"), limits.cm(tenant="b", timeout=0):
            assert await limits.try_acquire(tenant="b") is None
        with pytest.raises(TypeError, match="resize a key"):
            await limits.resize("tenant", 2)


@pytest.mark.parametrize(
    ("answer", "error"), [(None, TypeError), (1.5, TypeError), (-1, ValueError), (True, TypeError)]
)
async def test_a_function_that_returns_nonsense_fails_its_caller_and_nothing_is_taken(
    anywhere, answer, error
):
    tier = Tier("tenant", lambda _: answer, keyed=True)
    async with Tiers(tier, Tier("all", 1), **anywhere) as limits:
        for _ in range(2):
            with pytest.raises(error, match="the value of tier 'tenant' for 'a'"):
                await limits.acquire(tenant="a")
        assert (await limits.stats())["all"].active == 0


async def test_a_function_that_fails_fails_its_caller_and_nothing_is_taken(anywhere):
    async with Tiers(Tier("tenant", plan_of, keyed=True), Tier("all", 1), **anywhere) as limits:
        with pytest.raises(KeyError, match="nobody"):
            await limits.acquire(tenant="nobody")
        async with limits.cm(tenant="free"):
            pass


def test_a_function_needs_keys():
    with pytest.raises(TypeError, match="keyed=True"):
        Tier("all", plan_of)


def test_tiers_with_a_function_can_be_pickled(server):
    limits = Tiers(Tier("tenant", plan_of, keyed=True), url=server.url, name="by key")
    with limits.cm(tenant="free"):
        assert pickle.loads(pickle.dumps(limits)).try_acquire_sync(tenant="free") is None
    assert "tenant by key" in repr(limits)
    limits.close_sync()


async def test_a_function_and_a_number_are_different_rules(anywhere):
    name = anywhere.pop("name", "rules")
    limits = Tiers(Tier("tenant", plan_of, keyed=True), name=name, **anywhere)
    async with limits, limits.cm(tenant="pro"):
        with pytest.raises(ValueConflict):
            await Tiers(Tier("tenant", 3, keyed=True), name=name, **anywhere).acquire(tenant="a")
